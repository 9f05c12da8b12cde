# layouts.awk - turns the bare declarations of tutti.h (runtime/declarations.sh) into a C program that prints one line for
# each struct, member, constant and function: what a program that was built before relies on.

function name_of(declarator) { # of "*a", "a[4]" and "const char *a" the a
	sub(/\[.*/, "", declarator)
	return last_word(declarator)
}

function last_word(s) { return match(s, /[A-Za-z_0-9]+$/) ? substr(s, RSTART, RLENGTH) : "?" }

function text(line) { print "\tputs(\"" line "\");" }

function member(type, name) {
	print "\tprintf(\"" type "." name " at %zu, %zu bytes\\n\", offsetof(" type ", " name "), sizeof(((" type \
		" *)0)->" name "));"
}

function members(type, body,    n, i, m, k, decl, part) {
	print "\tprintf(\"" type ", %zu bytes\\n\", sizeof(" type "));"
	n = split(body, decl, ";")
	for (i = 1; i < n; i++) {
		if (match(decl[i], /\(\*[a-z_0-9]+\)/)) {
			member(type, substr(decl[i], RSTART + 2, RLENGTH - 3))
			continue
		}
		m = split(decl[i], part, ",")
		for (k = 1; k <= m; k++)
			member(type, name_of(part[k]))
	}
}

function constants(body,    n, i, part) {
	n = split(body, part, ",")
	for (i = 1; i <= n; i++)
		if (match(part[i], /TUTTI_[A-Z_0-9]+/))
			print "\tprintf(\"" substr(part[i], RSTART, RLENGTH) " = %d\\n\", (int)" \
				substr(part[i], RSTART, RLENGTH) ");"
}

function statement(s,    body) {
	gsub(/[ \t\n]+/, " ", s)
	sub(/^ /, "", s)
	body = s
	sub(/^[^{]*\{/, "", body)
	sub(/\}[^}]*$/, "", body)
	if (s ~ /^typedef struct [a-z_0-9]+ \{/)
		members(last_word(s), body)
	else if (s ~ /^(typedef )?enum( [a-z_0-9]+)? \{/)
		constants(body)
	else if (s !~ /^typedef struct ([a-z_0-9]+) [a-z_0-9]+$/)
		text(s)
}

BEGIN { print "#include <stdio.h>\n#include \"tutti.h\"\n\nint main(void)\n{" }
{ all = all $0 "\n" }
END {
	n = length(all)
	for (i = 1; i <= n; i++) {
		c = substr(all, i, 1)
		depth += (c == "{") - (c == "}")
		if (c == ";" && !depth) {
			statement(one)
			one = ""
		} else
			one = one c
	}
	print "\treturn 0;\n}"
}
