# Open the session: one private directory, one tmux server in it, one interactive bash in its pane.
# Answers with one line: "<nonce> ok <dir> <shell pid> <server pid>", or "<nonce> fail <reason> <details>".
# Every program it calls costs a millisecond or two of each episode: bash does what bash can.
# oldest is the oldest usable version of tmux, 301 for 3.1.
# ready is empty, or what to serve steps under: then this process goes on to do that, and reports it after a failure too.
# part is empty, or "root": then this process ends as the server itself, whose first answer is "<nonce> root <dir>", or that
# directory: then the server is there.
# The step script is in the variables seldom and step already, and no business of the pane's.
# shellcheck disable=SC2034,SC2154  # it shares variables with the step script
export -n seldom step
nonce=$1 rc=$2 columns=$3 rows=$4 history=$5 oldest=$6 tools=$7 ready=$8 part=$9

fail() {
    printf '%s fail %s\n' "$nonce" "$*"
    if [ -n "$dir" ]; then
        tmux -S "$dir/socket" kill-server 2>/dev/null
        rm -rf "$dir"
    fi
    [ -z "$ready" ] || printf '%s ready\n' "$ready"
    exit 0
}

# The sandbox may have made it for this process. Nobody else knows its name before.
dir=/run/.terminal-${nonce#@}
hash tmux 2>/dev/null || fail no-tmux
# What was brought along stays off the pane's PATH, and its locale out of the pane's environment.
tmux=${BASH_CMDS[tmux]} path=${PATH#"$tools:"}
clean=''
if [ -n "$tools" ]; then
    rc="unset LOCPATH"$'\n'$rc
    clean='set-environment -gu LOCPATH'
fi
is_old() { [[ $1 =~ ([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + BASH_REMATCH[2] < oldest)); }

dir=$part
[ "$part" != root ] || dir=''
for base in ${dir:+""} /run /dev/shm /var/tmp "$HOME" /tmp; do
    [ -n "$base" ] || break
    dir=$base/.terminal-${nonce#@}
    # shellcheck disable=SC2015  # the next directory is tried after whichever of them fails
    [ -O "$dir" ] || { [ -w "$base" ] && mkdir -m 700 "$dir"; } 2>/dev/null || continue
    # Who goes on to serve steps has it in memory.
    { [ -n "$ready" ] || printf 'seldom=\n%s\n' "$seldom$step" >"$dir/step"; } &&
        printf '%s\n' "${rc//@NONCE@/$nonce}" >"$dir/rc" &&
        printf '%s\n' "$PATH" >"$dir/path" && break
    # Its disk may be full.
    rm -rf "$dir"
done 2>/dev/null
[ -d "$dir" ] || { dir='' && fail no-directory; }

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

# In a file: the policy reads command lines when it lists processes, and a control client reports each command.
printf '%s\n' "$clean" "set-option -g history-limit $history" 'set-option -g status off' \
    'set-option -s escape-time 0' "set-option -s default-terminal $term" "set-option -g default-shell '$BASH'" \
    'set-option -wg remain-on-exit on' 'set-option -wg automatic-rename off' 'set-option -wg allow-rename on' >"$dir/options"
if [ "$part" = root ]; then
    printf '%s root %s\n' "$nonce" "$dir"
    LC_ALL=$locale PATH=$path exec "$tmux" -u -D -S "$dir/socket" -f "$dir/options" </dev/null >/dev/null 2>&1
fi
if [ -n "$part" ]; then
    exec {silence}<> <(:)
    for ((turn = 0; turn < 400; turn++)); do
        [ -S "$dir/socket" ] && break
        read -rt 0.005 -u "$silence"
    done
fi
# tmux 3.2 gives a new window the size of the control client. Where it was resized, no client changes its size.
words=(-f "$dir/options" new-session -d -P -F '#{pane_pid} #{pid} #{pane_tty} #{version}' -s main
    -x "$columns" -y "$rows" -c "$PWD" "$BASH" --rcfile "$dir/rc" -i
    ';' resize-window -t main -x "$columns" -y "$rows")
session=$nonce
set -- load
eval "$step"
for attempt in first second; do
    LC_ALL=$locale PATH=$path connect "${words[@]}" \; 2>"$dir/pane"
    status=$?
    # On a busy machine tmux was seen to end at its start without a word; it is started once more.
    if ((status == 0)) || [ "$attempt" = second ] || ((${#greeting[@]})); then break; fi
    tmux -S "$dir/socket" kill-server 2>/dev/null
    rm -f "$dir/client"
done
for line in "${greeting[@]}"; do [[ $line == %* ]] || printf '%s\n' "$line"; done >>"$dir/pane"
read -r shell server tty version <"$dir/pane"
if ((status)) || [[ $tty != /dev/* ]]; then
    is_old "$(tmux -V)" && fail old-tmux "$(tmux -V)"
    fail start "$(<"$dir/pane")"
fi
is_old "$version" && fail old-tmux "tmux $version"
printf '%s %s %s\n' "$shell" "$server" "$tty" >"$dir/pane"

# What the pane shows at its end, once tmux has noticed the end.
last_words() {
    local turn
    for ((turn = 0; turn < 100; turn++)); do
        ((turn > 20)) && kill -CHLD "$server"
        read_mark && [ "$is_dead" = 1 ] && break
        await_news 0.01
    done
    query "capture-pane -p -S - -t %0" && printf '%s\n' "${answer[0]}" | grep . | tail -n 5
} 2>/dev/null

await_first_prompt || fail shell-ended "$(last_words)"
printf '%s ok %s %s %s\n' "$nonce" "$dir" "$shell" "$server"
[ -z "$ready" ] || serve "$ready"
