"""Why a run is not faster: where its step goes, read from its folder, and what would help most.

`evidence` reads, `causes` has a rule for each thing that goes wrong, `render` says it. Imports up to suite.planner.
"""
