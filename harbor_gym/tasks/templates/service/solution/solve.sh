#!/bin/bash
cd /srv/agent || exit 1
cat >reverse.py <<'PROGRAM'
import socketserver


class Reverse(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.rstrip(b"\n")[::-1] + b"\n")


socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", 7070), Reverse).serve_forever()
PROGRAM
setsid python3 reverse.py </dev/null >service.log 2>&1 &
for _ in $(seq 50); do
    { exec 3<>/dev/tcp/127.0.0.1/7070; } 2>/dev/null && break
    sleep 0.1
done
