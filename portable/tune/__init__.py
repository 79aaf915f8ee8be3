"""`portable tune`: finds configs for shape classes on the device that is here, and files them.

`space` lists an implementation's configs, `prior` ranks them by a model of the device, `compiling` builds the
best of them in processes of their own, `trial` is the process that checks and times them, `session` decides
what is tried, and `store` merges what was found into a file of tuned configs. Nothing here runs in a call.
"""
