"""A registry of container images that has none; it answers as the OCI distribution specification says."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

UNKNOWN = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}


class Handler(BaseHTTPRequestHandler):
    """200 says that it is a registry; all else is 404."""

    default_request_version = "HTTP/1.1"
    """A client that tries TLS first, as containerd does, sees by the status line that this is HTTP."""

    def do_GET(self) -> None:
        is_root = self.path == "/v2/"
        content = json.dumps({} if is_root else UNKNOWN).encode()
        self.send_response(200 if is_root else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.do_GET()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
