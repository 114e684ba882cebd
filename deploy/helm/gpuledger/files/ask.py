"""What `helm test` runs: is the exporter ready? Arguments: host, port, and http, https or tcp."""

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
        url = f"{scheme}://{host}:{port}{path}"
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            sys.stdout.write(f"{url} {answer.status} {answer.read().decode()}\n")
