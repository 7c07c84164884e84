"""Records of a run: what nodes number and show, what clients ask for and are told, and the story for people.

`machine`, `world` and clients write them; `checks` compare them with the nodes. `watch` and `cache` also check every
step.
"""
