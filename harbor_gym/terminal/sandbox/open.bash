# Open the session: one private directory, one tmux server in it, one interactive bash in its pane.
# Answers with one line: "<nonce> ok <dir> <shell pid> <server pid>", or "<nonce> fail <reason> <details>".
# Every program it calls costs a millisecond or two of each episode: bash does what bash can.
# ready is empty, or what to serve steps under: then this process goes on to do that, and says so after a failure too.
# Its control client is the one that starts the server then.
# settle is how long tmux gets to draw the first prompt, in seconds, where nobody serves.
# The step script is in the variable step already, and no business of the pane's.
export -n step
nonce=$1 rc=$2 columns=$3 rows=$4 history=$5 tools=$6 settle=$7 ready=$8

fail() {
    printf '%s fail %s\n' "$nonce" "$*"
    if [ -n "$dir" ]; then
        tmux -S "$dir/socket" kill-server 2>/dev/null
        rm -rf "$dir"
    fi
    [ -z "$ready" ] || printf '%s ready\n' "$ready"
    exit 0
}

dir=
hash tmux 2>/dev/null || fail no-tmux
# What was brought along stays off the pane's PATH, and its locale out of the pane's environment.
tmux=${BASH_CMDS[tmux]} path=${PATH#"$tools:"}
clean=''
if [ -n "$tools" ]; then
    rc="unset LOCPATH"$'\n'$rc
    clean='set-environment -gu LOCPATH'
fi
is_old() { [[ $1 =~ ([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] < 3)); }

for base in /run /dev/shm /var/tmp "$HOME" /tmp; do
    dir=$base/.terminal-${nonce#@}
    # Some environments make it beforehand, which saves two programs.
    [ -p "$dir/nap" ] && break
    if [ -w "$base" ] && mkdir -m 700 "$dir" 2>/dev/null; then
        mkfifo "$dir/nap" && break
        rmdir "$dir"
    fi
    dir=
done
[ -n "$dir" ] || fail no-directory
# shellcheck disable=SC2015
printf '%s\n' "$step" >"$dir/step" &&
    printf '%s\n' "${rc//@DIR@/$dir}" >"$dir/rc" &&
    printf '0:0:0\n' >"$dir/prompt" &&
    printf '0 0:0:0\n' >"$dir/typed" &&
    printf '%s\n' "$PATH" >"$dir/path" || fail no-directory "$dir"

# An unknown locale makes bash complain; without UTF-8 tmux would not start at all.
for locale in C.UTF-8 en_US.UTF-8 C; do
    { LC_ALL=$locale; } 2>"$dir/complaint"
    [ -s "$dir/complaint" ] || break
done
# Without the E3 capability `clear` pushes the screen into the scrollback, so that no line escapes the count.
term=screen
for terminfo in /etc/terminfo /lib/terminfo /usr/lib/terminfo /usr/share/terminfo; do
    if [ -e "$terminfo/s/screen-256color" ] || [ -e "$terminfo/73/screen-256color" ]; then term=screen-256color; fi
done
if [ -n "$tools" ] && [ "$term" = screen ]; then
    export TERMINFO_DIRS=$TERMINFO_DIRS:$tools/terminfo
    term=screen-256color
fi
unset TMUX TMUX_PANE
export SHELL=$BASH

# In a file: the policy reads command lines when it lists processes, and a control client tells of each command.
printf '%s\n' "$clean" "set-option -g history-limit $history" 'set-option -g status off' \
    'set-option -s escape-time 0' "set-option -s default-terminal $term" "set-option -g default-shell '$BASH'" \
    'set-option -wg remain-on-exit on' >"$dir/options"
words=(-f "$dir/options" new-session -d -P -F '#{pane_pid} #{pid} #{pane_tty} #{version}' -s main
    -x "$columns" -y "$rows" -c "$PWD" "$BASH" --rcfile "$dir/rc" -i)
if [ -n "$ready" ]; then
    greeting=()
    set -- load
    eval "$step"
    LC_ALL=$locale PATH=$path connect "${words[@]}" \; 2>"$dir/pane"
    for line in "${greeting[@]}"; do [[ $line == %* ]] || printf '%s\n' "$line"; done >>"$dir/pane"
    [ -n "$to" ]
else
    LC_ALL=$locale PATH=$path "$tmux" -u -S "$dir/socket" "${words[@]}" >"$dir/pane" 2>&1
fi
status=$?
read -r shell server tty version <"$dir/pane"
if ((status)) || [[ $tty != /dev/* ]]; then
    is_old "$(tmux -V)" && fail old-tmux "$(tmux -V)"
    fail start "$(<"$dir/pane")"
fi
is_old "$version" && fail old-tmux "tmux $version"
printf '%s %s %s\n' "$shell" "$server" "$tty" >"$dir/pane"

is_running() {
    local stat
    IFS= read -r -d '' stat <"/proc/$1/stat"
    [ -n "$stat" ] && [[ ${stat##*) } != [ZX]* ]]
} 2>/dev/null

# What the pane shows at its end, once tmux has noticed the end.
last_words() {
    local turn
    for ((turn = 0; turn < 100; turn++)); do
        ((turn > 20)) && kill -CHLD "$server"
        [ "$(tmux -S "$dir/socket" display-message -p -t %0 '#{pane_dead}')" = 1 ] && break
        read -rt 0.01 -u 9
    done
    tmux -u -S "$dir/socket" capture-pane -p -S - -t %0 | grep . | tail -n 5
} 2>/dev/null

exec 9<>"$dir/nap"
for ((i = 0; i < 1000; i++)); do
    read -r mark <"$dir/prompt"
    [ "$mark" != 0:0:0 ] && break
    is_running "$shell" || fail shell-ended "$(last_words)"
    read -rt 0.01 -u 9
done
[ -n "$ready" ] || read -rt "$settle" -u 9
printf '%s ok %s %s %s\n' "$nonce" "$dir" "$shell" "$server"
[ -z "$ready" ] || serve "$ready"
