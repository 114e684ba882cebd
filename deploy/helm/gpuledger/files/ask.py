"""What `helm test` runs: ask an exporter whether it is ready. Arguments: host, port, and http, https or tcp."""

import socket
import ssl
import sys
import urllib.request

host, port, scheme = sys.argv[1:4]
if scheme == "tcp":
    # Nobody without a client certificate is let further.
    socket.create_connection((host, int(port)), timeout=10).close()
else:
    # Whether it answers is asked here, not whose the certificate is.
    context = ssl._create_unverified_context() if scheme == "https" else None
    for path in ("/-/healthy", "/-/ready"):
        with urllib.request.urlopen(f"{scheme}://{host}:{port}{path}", timeout=10, context=context) as answer:
            print(path, answer.status, answer.read().decode().strip())
