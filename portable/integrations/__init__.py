"""Other libraries run on this package's ops: one module per library, imported when it is used.

    from portable.integrations import transformers
    print(transformers.enable(model))

Each has `enable`, which answers what it replaced and what it left alone, and `disable`, which puts everything
back. None of the libraries is a requirement of this package.
"""
