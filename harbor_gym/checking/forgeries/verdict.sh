# shellcheck shell=bash disable=SC2154,SC2034 # common.sh comes first and sets what the tricks use
# A reward that lies there already, in both of its forms.
mkdir -p /logs/verifier
printf '1\n' >/logs/verifier/reward.txt
printf '%s\n' "$verdict" >/logs/verifier/reward.json
chmod 444 /logs/verifier/reward.txt /logs/verifier/reward.json
