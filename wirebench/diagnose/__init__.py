"""Why a run is not faster: where its step goes, read from its folder, and what would help most.

`evidence` reads a record, `drawn` its trace.json, `live` a run under way, `kineto` PyTorch profiler's files of a job
that is not ours (`job`, `job_render`). `link` fits the cost of messages, and `exchange` lists their times. `causes` has
a rule for each cause, and each rule returns a `finding`; `full_link` takes its changes from `fewer_bytes`. `measure`
times the network alone. `trial` tries changes, launched as `launching` finds in the record. `render` prints the result.
`flight` reads dumps of a job that hangs. Imports up to wirebench.planner.
"""
