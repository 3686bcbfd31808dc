# shellcheck shell=sh disable=SC2154  # common.sh stands before
# Stop the running processes. Spared: the processes and System V objects in $1 (",PID:START,KIND:NUMBER,"), descendants
# of those processes (a server's workers), and this script. Killed at once: the processes in $2 (",PID,"). $3 is the
# terminal's directory, to be removed, or "": processes with it in their command line are not counted. $4 and $5 are
# hundredths of a second: from SIGTERM to SIGKILL, and for the whole stop.
# $6 to $8 are the caller's boot id, pid and start: kill nothing where that process is visible.
# Print the number stopped, the number left, and the number of the memory limit's kills so far.
# POSIX sh and builtins, except for pauses: the policy may have broken or removed the image's programs.
own=$1 terminal=$2 leftovers=$3 grace=$4 limit=$5 boot=$6 caller=$7 born=$8
stopped=0 seen=',' victims='' others=0

# Set now to the time since boot in hundredths of a second.
tell_time() {
    read -r now _ </proc/uptime
    now=${now%.*}${now#*.}
}

# Whether process $1 is to be spared, or descends from one that is, other than the sandbox's first.
is_of_a_service() {
    above=$1
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
        eval "begun=\${start_$above:-}"
        [ -n "$begun" ] || return 1
        case $own in *",$above:$begun,"*) return 0 ;; esac
        eval "above=\${parent_$above:-0}"
        [ "$above" -gt 1 ] || return 1
    done
    return 1
}

# Set victims to the processes to stop, and others to 1 if there are any to spare.
find_victims() {
    pids='' victims='' others=0
    for path in /proc/[0-9]*; do
        pid=${path#/proc/}
        if [ "$pid" = 1 ] || ! look "$pid"; then continue; fi
        # A process whose first thread has ended looks dead while its other threads run on.
        case $state in Z | X) [ "$threads" -gt 1 ] || continue ;; esac
        pids="$pids $pid"
        eval "parent_$pid=$parent start_$pid=$start"
    done
    for pid in $pids; do
        case $mine in *",$pid,"*) continue ;; esac
        if is_of_a_service "$pid"; then others=1; else victims="$victims $pid"; fi
    done
}

# Count victims that were not yet counted. Also unset the variables of find_victims.
count_victims() {
    for pid in $victims; do
        eval "begun=\$start_$pid"
        case $seen in *",$pid:$begun,"*) continue ;; esac
        seen="$seen$pid:$begun," words=''
        IFS= read -r words <"/proc/$pid/cmdline"
        if [ -n "$leftovers" ]; then
            case $words in *"$leftovers"*) continue ;; esac
            # Without a command line it has erased it, or is ending by itself (PF_EXITING), like the terminal's client.
            if [ -z "$words" ] && { ! look "$pid" || { [ "$threads" -le 1 ] && [ $((flags & 4)) -ne 0 ]; }; }; then continue; fi
        fi
        stopped=$((stopped + 1))
    done
    for pid in $pids; do unset "parent_$pid" "start_$pid"; done
}

stop_all() {
    # This process and its new ancestors, such as the one that runs the caller's commands.
    mine=",$$,"
    pid=$$
    while look "$pid" && [ "$parent" -gt 1 ]; do
        pid=$parent
        look "$pid" || break
        case $own in *",$pid:$start,"*) break ;; *) mine="$mine$pid," ;; esac
    done
    tell_time
    end=$((now + limit))
    find_victims
    count_victims
    for pid in $victims; do
        case $terminal in *",$pid,"*) kill -s KILL "$pid" ;; *) kill -s TERM "$pid" ;; esac
    done
    tell_time
    from=$((now + grace)) looks=2
    while find_victims; do
        count_victims
        tell_time
        if [ -z "$victims" ]; then looks=$((looks - 1)); else looks=2; fi
        if [ "$looks" = 0 ] || [ "$now" -gt "$end" ]; then break; fi
        if [ "$now" -gt "$from" ] || [ -z "$victims" ]; then
            # All at once, if there is none to spare: no process can escape that by forking.
            if [ "$others" = 0 ] && [ "$mine" = ",$$," ]; then
                kill -s KILL -- -1 || { find_victims && break; }
            elif [ -n "$victims" ]; then
                # shellcheck disable=SC2086  # a list
                kill -s STOP $victims
                # shellcheck disable=SC2086  # a list
                kill -s KILL $victims
            fi
        fi
        # No sleep while a process is to be stopped: at the limit of processes the failed fork would end the shell.
        [ -n "$victims" ] || sleep 0.02
    done
    list_objects
    for object in $objects; do
        case $own in *",$object,"*) continue ;; esac
        # A program of the image, if it has it; otherwise these objects stay.
        case $object in
            shm:*) ipcrm -m "${object#*:}" ;;
            sem:*) ipcrm -s "${object#*:}" ;;
            msg:*) ipcrm -q "${object#*:}" ;;
        esac
    done
}

sees_the_caller() {
    read -r here </proc/sys/kernel/random/boot_id
    [ "$here" = "$boot" ] && look "$caller" && [ "$start" = "$born" ]
}

sees_the_caller || stop_all
left=0
for pid in $victims; do left=$((left + 1)); done
[ -z "$leftovers" ] || rm -rf -- "$leftovers"
echo "stop $stopped $left $kills"
