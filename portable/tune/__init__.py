"""`portable tune`: finds configs for shape classes on a device and writes them to a file.

`space` lists an implementation's configs, `cost_model` ranks them by a model of the device, `compiling`
builds the best of them in worker processes, `trial_worker` is the process that checks and times them,
`by_model` times them by an emulated device's timing model instead,
`session` decides what is tried, and `store` merges what was found into a file of tuned configs. None of it
runs in a call.
"""
