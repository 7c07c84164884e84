#!/bin/sh
# At the only node that is left: copies what it has, then looks whether mail is missing. The node goes on serving.
set -eu
usage='usage: last-node.sh CONFIG BACKUP
CONFIG: of the node on this machine; BACKUP: a new directory on another disk.'
config=${1:?"$usage"} backup=${2:?"$usage"}

path() { # of a key of the configuration; relative ones begin at its directory
    found=$(replicator config show "$config" | sed -n "s/^$1 = \"\([^\"]*\)\".*/\1/p")
    case $found in '' | /*) echo "$found" ;; *) echo "$(dirname "$config")/$found" ;; esac
}

replicator health --live --config "$config"
data=$(path data) attachments=$(path attachments)
umask 077
mkdir "$backup" # fails if there is one
sqlite3 "$data/node.db" "VACUUM INTO '$backup/node.db'"
if [ -d "${attachments:=$data/attachments}" ]; then
    cp -Rp "$attachments" "$backup/attachments"
fi
failed=0
replicator check --config "$config" || failed=1
replicator scrub --config "$config" || failed=1
exit "$failed"
