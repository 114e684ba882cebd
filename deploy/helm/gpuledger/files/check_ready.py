"""Check for `helm test` that the exporter is healthy and ready. Arguments: HOST PORT http|https|tcp."""

import socket
import ssl
import sys
import urllib.request

host, port, scheme = sys.argv[1:4]
if scheme == "tcp":
    # The exporter requires a client certificate, so only check that it accepts connections.
    socket.create_connection((host, int(port)), timeout=10).close()
else:
    # Only checks that the exporter responds; does not verify its certificate.
    context = ssl._create_unverified_context() if scheme == "https" else None
    for path in ("/-/healthy", "/-/ready"):
        url = f"{scheme}://{host}:{port}{path}"
        with urllib.request.urlopen(url, timeout=10, context=context) as response:
            sys.stdout.write(f"{url} {response.status} {response.read().decode()}\n")
