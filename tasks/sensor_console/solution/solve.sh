#!/bin/bash
# Without a terminal: speaks to the station's socket as the console does, and halves the range after every answer.
exec /usr/bin/python3 -I - <<'PROGRAM'
import socket

link = socket.socket(socket.AF_UNIX)
link.connect("/run/station.sock")
with link.makefile("rw") as lines:
    for sensor in "ABC":
        low, high = 0, 99
        answer = ""
        while "locked" not in answer:
            middle = (low + high) // 2
            print(f"try {sensor} {middle}", file=lines, flush=True)
            answer = lines.readline()
            if "low" in answer:
                low = middle + 1
            else:
                high = middle - 1
    print("commit", file=lines, flush=True)
    print(lines.readline())
PROGRAM
