#!/bin/bash
# Without a terminal: the same moves in vim's silent mode.
set -e
cd /home/agent/notes
vi -u NONE -es -r incident.md -c 'wq!'
rm .incident.md.swp
vi -u NONE -es incident.md -c '%s/wner: ?$/wner: dana/' -c wq
