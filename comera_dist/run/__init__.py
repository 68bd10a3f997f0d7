"""A run from its start to its end.

Read the files in this order: `train` (the function that users call, and the parts that they may hand in), `loop` (the
order of steps, checkpoints, validations and logs), `session` (one step, validation, log and checkpoint), `opening` (how
a session is opened), with `start` and `compatibility` (the weights that it starts from), `run_model`, `feed` and
`data_check`. `trained` and `evaluate` read a finished run.
"""
