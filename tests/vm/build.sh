#!/bin/sh
# build.sh - makes the guest in which RDMA is tested: Debian's kernel with rxe (soft RoCE) and siw (soft iWARP)
#
#   tests/vm/build.sh     once: 0 and not a word if the guest is there
#
# Needs no root. All comes from the archive that apt knows: some 230 MB are fetched, some 80 MB stay in the cache
# folder, ${GUEST_CACHE:-~/.cache/tutti-vm}:
#   vmlinux, initramfs    what qemu boots
#   made                  of which kernel, with or without siw, and the checksum of this script
#   build.log             what the last build did
# Exit status: 0; 1 with what went wrong; 77 with a line `SKIPPED: ...` where the guest cannot be made.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd) || exit 1
# shellcheck source=tests/vm/common.sh
. "$here/common.sh"

# What the guest loads. crc32 is what rxe asks the kernel's cryptography for, in words that no list of dependencies has.
modules='virtio_pci virtio_console 9p 9pnet_virtio overlay crc32_generic crc32_pclmul crc32c_generic crc32c_intel
ib_uverbs rdma_ucm rdma_rxe siw veth sch_netem'

skip() { echo "SKIPPED: $*"; exit 77; }
give_up() { echo "build.sh: $*; $cache/build.log has what was done" >&2; exit 1; }

depends_of() { # package, pattern: the packages that it depends on whose names begin so
	apt-cache depends "$1" 2> /dev/null | sed -n "s/^ *Depends: \($2.*\)/\1/p"
}

find_kernel() { # its name, version and series; the newest that the archive has
	[ "$(dpkg --print-architecture 2> /dev/null)" = amd64 ] || skip "the RDMA guest is made on Debian for amd64"
	missing=$(missing_packages)
	[ -z "$missing" ] || skip "the RDMA guest needs packages: apt-get install --no-install-recommends $missing"
	kernel=$(depends_of linux-image-amd64 'linux-image-[0-9]' | sed 's/^linux-image-//')
	[ -n "$kernel" ] || skip "apt does not know linux-image-amd64, Debian's kernel; apt-get update may help"
	version=$(apt-cache show --no-all-versions "linux-image-$kernel" | sed -n 's/^Version: //p')
	series=$(echo "$kernel" | sed 's/^\([0-9]*\.[0-9]*\).*/\1/')
}

# --- steps; each runs in the work folder, and its output goes to the log ---

fetch_kernel() {
	apt-get download -q busybox-static "linux-image-$kernel" || return
	for package in *.deb; do
		dpkg-deb -x "$package" image || return
	done
	rm ./*.deb
}

# A bzImage is setup sectors, then what unpacks the kernel; its header says where in the latter the packed kernel lies,
# and how long it is (the kernel's Documentation/x86/boot.rst). Unpacked once here, it need not be at each boot.
number() { od -An -t "u$2" -j "$1" -N "$2" "$image" | tr -d ' '; } # offset, bytes

unpack_kernel() {
	image=image/boot/vmlinuz-$kernel
	start=$(((1 + $(number 497 1)) * 512 + $(number 584 4)))
	tail -c +$((start + 1)) "$image" | head -c "$(number 588 4)" > packed
	case $(od -An -t x1 -N 4 packed | tr -d ' ') in
	fd377a58) xz -dc --single-stream packed > guest/vmlinux ;; # a length follows the stream
	28b52ffd) zstd -dcq packed > guest/vmlinux ;;
	1f8b*) gzip -dcq packed > guest/vmlinux ;;
	esac
	[ "$(head -c 4 guest/vmlinux | tail -c 3)" = ELF ] || cp "$image" guest/vmlinux # which starts, too
}

# siw is no part of Debian's kernels, but of their source.
build_siw() {
	siw=linux-source-$series/drivers/infiniband/sw/siw
	# shellcheck disable=SC2046
	apt-get download -q "linux-source-$series=$version" "linux-headers-$kernel" \
		$(depends_of "linux-headers-$kernel" 'linux-[hk]') || return
	for package in linux-headers-*.deb linux-kbuild-*.deb; do
		dpkg-deb -x "$package" headers || return
	done
	dpkg-deb --fsys-tarfile linux-source-*.deb | tar -xO "./usr/src/linux-source-$series.tar.xz" |
		tar -xJ "$siw" || return
	(
		unset MAKEFLAGS MFLAGS MAKELEVEL
		headers=$work/headers/usr/src
		make -C "$headers"/linux-headers-*-common O="$headers/linux-headers-$kernel" M="$work/$siw" \
			CONFIG_RDMA_SIW=m modules
	) && strip -g "$siw/siw.ko" && cp "$siw/siw.ko" "image/lib/modules/$kernel/"
}

# The modules with those that they depend on, busybox, and our init.
pack_initramfs() {
	tree=lib/modules/$kernel
	image/bin/busybox depmod -b image "$kernel" || return
	mkdir -p root/bin "root/$tree" root/proc root/sys root/dev root/job root/root || return
	# shellcheck disable=SC2086
	echo $modules | tr ' ' '\n' | awk '
		function name(path) { gsub(/.*\/|\.ko.*/, "", path); gsub("-", "_", path); return path }
		FNR == NR { wanted[$1] = 1; next }
		{ sub(":", "", $1) }
		name($1) in wanted { for (i = 1; i <= NF; i++) print $i }' - "image/$tree/modules.dep" | sort -u > files
	while read -r file; do
		cp "image/$tree/${file#/}" "root/$tree" || return
	done < files
	find root/lib -name '*.xz' -exec xz -d {} + || return
	image/bin/busybox depmod -b root "$kernel" || return
	cp image/bin/busybox root/bin/ && cp "$here/init" root/init && chmod 755 root/init || return
	# shellcheck disable=SC2086
	echo $modules > root/modules
	(cd root && find . | ../image/bin/busybox cpio -o -H newc) > guest/initramfs
}

# --- in order ---

step() { # what it does, function: false if that failed
	echo "guest: $1"
	count_seconds "guest"
	(set -x && "$2") >> "$cache/build.log" 2>&1 < /dev/null
	result=$?
	end_count
	return $result
}

made_by="made by $(cat "$here/build.sh" "$here/init" | cksum)"
is_made() { grep -qsxF "$made_by" "$cache/made"; }

! is_made || exit 0
find_kernel
if ! mkdir -p "$cache" || ! exec 9> "$cache/lock" || ! flock 9; then
	echo "build.sh: cannot write in $cache" >&2
	exit 1
fi
! is_made || exit 0 # by another, meanwhile
: > "$cache/build.log"
work=$cache/work
rm -rf "$work" "$cache/made"
trap 'end_count; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p "$work/guest" && cd "$work" || exit 1
step "fetching Debian's kernel $kernel (70 MB)" fetch_kernel ||
	skip "Debian's kernel cannot be fetched; apt-get update may help; $cache/build.log has why"
step "unpacking it" unpack_kernel || give_up "the kernel could not be unpacked"
siw=yes
step "fetching its source (150 MB) and building siw" build_siw || siw=no
[ $siw = yes ] || echo "guest: siw could not be built, there will be no iWARP; $cache/build.log has why"
step "packing the initramfs" pack_initramfs || give_up "the initramfs could not be packed"
mv guest/vmlinux guest/initramfs "$cache/" || give_up "nothing can be moved to $cache"
printf '%s\n' "kernel $kernel $version" "siw $siw" "$made_by" > "$cache/made"
echo "guest: made, in $cache"
