#!/bin/bash
set -e
cd /var/log/shop
{ cat shop.log shop.log.1; zcat ./*.gz; } | grep ' ERROR ' | cut -c 12-13 | sort | uniq -c |
    awk '{ print $2, $1; sum += $1 } END { print "total", sum }' >~/report.txt
