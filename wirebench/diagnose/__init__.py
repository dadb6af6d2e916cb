"""Why a run is not faster: where its step goes, read from its folder, and what would help most.

`evidence` reads a record, `drawn` its trace.json, `live` a run under way, `link` fits what messages cost, `exchange`
has rows on them, `causes` has a rule for each thing that goes wrong, each makes a `finding`; that of `full_link`
takes its changes from `fewer_bytes`. `measure` times the network alone, `trial` tries changes, launched as `launching`
finds in the record, and `render` says it all. Imports up to wirebench.planner.
"""
