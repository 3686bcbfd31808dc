#!/bin/bash
set -e
cd /var/log/shop
mv shop.log.2 shop.log.3
mv shop.log.1 shop.log.2
mv shop.log shop.log.1
install -m 640 /dev/null shop.log
