#!/bin/sh
# declarations.sh - writes the bare declarations of tutti.h, for LuaJIT's ffi.cdef and Python's cffi: without comments,
# lines of the preprocessor and extern "C". What is left is plain C that needs stddef.h and stdint.h.
#   declarations.sh TUTTI.H
set -e
sed -e ':join' -e '$!{' -e 'N' -e 'b join' -e '}' -e 's@/\*[^*]*\*\**\([^/*][^*]*\*\**\)*/@@g' "$1" |
	sed -e 's/[ 	]*$//' -e '/^$/d' -e '/^[ 	]*#/d' -e '/^extern "C" {$/d' -e '/^}$/d'
