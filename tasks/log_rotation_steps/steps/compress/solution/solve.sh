#!/bin/bash
set -e
gzip /var/log/shop/shop.log.2 /var/log/shop/shop.log.3
