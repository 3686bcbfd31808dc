# Answering with the screen.
# shellcheck disable=SC2034,SC2154  # the parts of the script share their variables; a test checks the whole

# Screen and mark are captured in one request, and stay in tmux, so that they can be read again if this answer is lost.
# tmux pauses to save a buffer, and the further commands of a client that exits then are lost: the capture is a request of
# its own before that.
show_screen() {
    local turn pane="$nonce pane #{pane_dead} #{pane_dead_status} #{pane_dead_signal} . #{alternate_on} #{cursor_y} #{history_size} #{pane_height}"
    for turn in 1 2; do
        is_unread=1 ask "set-option -p -F -t %0 @frame '$pane|#{pane_path}'" "set-option -p -t %0 @step '$nonce step ${waits:-,}'" \
            "if-shell -F -t %0 '#{alternate_on}' 'capture-pane -b text -t %0 ; capture-pane -b visible -t %0' \
'capture-pane -b text -J -S - -t %0 ; clear-history -t %0 ; capture-pane -b visible -J -t %0'"
        show_again && return
    done
    find_remains
    printf '%s step %s 0:0:\n%s gone %s\n' "$nonce" "${waits:-,}" "$nonce" "$remains"
}

# Sets remains to a list of what is left of a session without a screen, for the log.
find_remains() {
    remains=''
    [ -x "$tmux" ] && remains+='tmux '
    [ -e "$dir/socket" ] && remains+='socket '
    [ -d "/proc/$server" ] && remains+='server '
    read_stat "$shell" && remains+='shell '
    [ -n "$to" ] && remains+='client '
    remains="left of it: ${remains:-nothing}"
}

# Prints the answer that tmux keeps; false if it is not of this step.
show_again() {
    local begin frame bytes size source text visible
    query "display-message -p -t %0 '#{@step}'" "display-message -p -t %0 '#{@frame}'" \
        "list-buffers -F '#{buffer_name} #{buffer_size}'" "save-buffer -b text $dir/text" "save-buffer -b visible $dir/visible"
    # If a buffer could not be saved, the rest is still an answer.
    ((${#answer[@]} >= 3)) || return
    begin=${answer[0]} frame=${answer[1]%%|*}
    take_mark "${answer[1]#*|}"
    [[ $begin == "$nonce step "* ]] && find_source text "${answer[2]}" || return
    text=("${source[@]}") visible=() size=$((${#frame} + 1 + bytes))
    if [[ ${frame#* . } != 1* ]]; then
        find_source visible "${answer[2]}" || return
        visible=("${source[@]}") size=$((size + ${#nonce} + 9 + bytes))
    fi
    printf '%s %s\n' "$begin" "$mark"
    if ((size <= 2 * limit)); then
        show_frame
    else
        show_frame | head -c "$limit"
        printf '\n%s cut %s %s\n' "$nonce" "$(show_frame | wc -l)" "$size"
        show_frame | tail -c "$limit"
    fi
    return 0
}

# Sets source to a command that prints tmux's buffer $1, and bytes to its size in the list of buffers $2. The saved file is
# the fastest source, unless the disk was full, which tmux does not report.
find_source() {
    local part=''
    [[ $'\n'$2$'\n' =~ $'\n'"$1 "([0-9]+)$'\n' ]] || return
    bytes=${BASH_REMATCH[1]} source=(print_buffer "$1")
    # bash is slow with long texts.
    if ((bytes > 32000)); then
        (($(wc -c <"$dir/$1") == bytes)) && source=(cat "$dir/$1")
    else
        IFS= read -r -d '' part <"$dir/$1"
        ((${#part} == bytes)) && source=(printf %s "$part")
    fi
    return 0
}

print_buffer() {
    if [ -x "$tmux" ] && [ -e "$dir/socket" ]; then
        "$tmux" -u -S "$dir/socket" show-buffer -b "$1"
    elif ask "show-buffer -b $1"; then
        # Slower: bash reads a pipe byte by byte.
        printf '%s\n' "${answer[0]%$'\n'}"
    fi
}

show_frame() {
    printf '%s\n' "$frame"
    "${text[@]}"
    if ((${#visible[@]})); then
        printf '%s visible\n' "$nonce"
        "${visible[@]}"
    fi
}
