"""The fields of objects, and which field manager owns each field.

`shapes` defines the fields of a kind, and `reading` brings a client's document into that shape. `paths` and `merging`
are the operations of server-side apply. `ownership` records which manager set which field. No module here knows a store
or HTTP.
"""
