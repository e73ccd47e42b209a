"""Values, trees, deltas and frames as bytes and back, exactly. Pure: no I/O and no clock.

`codec` turns values into bytes, with `extensions` for dates, paths and the like, `classes` for users' classes and `foreign`
for what a framework serialized. `tree` is a state in that form, `delta` a change of it, `diff` finds one, `frames` is what a
store keeps of a checkpoint. `json_form` writes stored bytes as readable JSON; `text`, `plain` and `words` serve people.
"""
