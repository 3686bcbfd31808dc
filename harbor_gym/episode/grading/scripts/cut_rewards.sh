# shellcheck shell=sh  # common.sh stands before
# Cut the reward files in directory $1 that have more than $2 bytes to that size: all of them would be transferred.
cd -- "$1" || exit
for file in reward.txt reward.json; do
    [ -f "$file" ] || continue
    [ -z "$(find -L "$file" -size "+${2}c")" ] || dd if=/dev/null of="$file" bs=1 seek="$2" count=0
done
