#!/bin/bash
set -e
rm /srv/app/app.pid
chmod 600 /etc/app/key
sed -i 's/ap$/app/' /etc/app/app.conf
appctl start
