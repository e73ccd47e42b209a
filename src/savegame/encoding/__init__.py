"""Values, trees, deltas and frames as bytes and back, exactly. Pure: no I/O and no clock.

`codec` encodes values, with `extensions` for dates, paths and the like, `classes` for users' classes and `foreign` for what a
framework serialized; `raw` handles encoded values undecoded. `tree` is an encoded state, `delta` a change of it, `diff` finds
deltas, `frames` is what a store keeps of a checkpoint. `json_form` writes stored bytes as readable JSON; `text`, `plain` and
`words` serve people.
"""
