"""The protocol of a TCP connection over a WebSocket: its subprotocol, and the message that ends one direction.

Binary messages are the bytes of the connection. The text message `EOF` means that its sender sends no more bytes, as in
a half-closed connection; the other direction stays open. Pure; the standard library only, because the command line
imports it.
"""

PROTOCOL = "tcp.v1.slipway.dev"
EOF = "eof"
