# sshd.sh - a real sshd of a test's own, and an ssh that leads to it. A folder has their keys.
# shellcheck shell=sh

has_sshd() {
	sshd=$(PATH=$PATH:/usr/sbin:/sbin command -v sshd) && command -v ssh > /dev/null &&
		command -v ssh-keygen > /dev/null
}
sshd_keys() { # folder
	mkdir -p "$1" && chmod 700 "$1" || return
	ssh-keygen -q -t ed25519 -N '' -f "$1/host" && ssh-keygen -q -t ed25519 -N '' -f "$1/user" &&
		cp "$1/user.pub" "$1/allowed" || return
	[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
}
sshd_line() { # folder, address, port: the command
	echo "$sshd -D -e -f /dev/null -p $3 -o ListenAddress=$2 -o HostKey=$1/host -o PidFile=none \
-o AuthorizedKeysFile=$1/allowed -o StrictModes=no -o UsePAM=no -o PasswordAuthentication=no -o PermitRootLogin=yes"
}
ssh_line() { # folder, port: the command
	echo "ssh -T -F none -p $2 -i $1/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
-o LogLevel=ERROR -o BatchMode=yes"
}
