# shellcheck shell=sh
# Empty the directories after $1 and make them root's, so that nothing left there can be taken for a verdict. The first
# is the verifier's output: $1 is the user to give it to, or "" where verifier and policy are one user.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
owner=$1
shift
output=$1

for directory; do
    if [ -L "$directory" ] || { [ -e "$directory" ] && [ ! -d "$directory" ]; }; then rm -rf -- "$directory"; fi
    # Closed first: who runs on must not fill what is being emptied.
    mkdir -p -- "$directory" && chmod 755 -- "$directory"
    chown root -- "$directory" 2>/dev/null
    find "$directory" -mindepth 1 -maxdepth 1 -exec rm -rf -- {} +
    # Believed only when seen: the policy may have replaced the programs above.
    for left in "$directory"/* "$directory"/.[!.]* "$directory"/..?*; do
        if [ -e "$left" ] || [ -L "$left" ]; then
            echo "$left could not be removed"
            exit 0
        fi
    done
    [ -d "$directory" ] || { echo "$directory could not be made"; exit 0; }
done
if [ -z "$owner" ] || ! chown "$owner" -- "$output"; then chmod 777 -- "$output"; fi
echo sealed
