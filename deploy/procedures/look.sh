#!/bin/sh
# Shows what nodes that are parted, or were, have of a folder. It changes nothing.
set -eu
usage='usage: look.sh USER MAILBOX --config FILE|--url URL...
The options name all nodes that can be asked from here.'
user=${1:?"$usage"} mailbox=${2:?"$usage"}
shift 2
: "${2:?"$usage"}"

replicator status --user "$user" "$@" || :
while [ "$#" -ge 2 ]; do
    replicator mailbox show "$user" "$mailbox" "$1" "$2" || :
    replicator log show --last 10 "$user" "$mailbox" "$1" "$2" || :
    shift 2
done
