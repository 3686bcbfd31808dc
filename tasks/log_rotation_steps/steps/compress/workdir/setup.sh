#!/bin/bash
# Runs as the policy's user before the step: the shop writes on. What the policy did to the log must not break the step.
cat "$(dirname "$0")/new_traffic.txt" >>/var/log/shop/shop.log
exit 0
