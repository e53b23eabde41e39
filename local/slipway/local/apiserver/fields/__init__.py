"""What fields an object has, and whose they are.

`shapes` says which fields a kind has, `reading` brings a client's document into that shape, `paths` and `merging` are
the arithmetic of server-side apply, and `ownership` keeps who set what. Nothing here knows a store or HTTP.
"""
