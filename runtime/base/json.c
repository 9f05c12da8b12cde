/* json.c - a cursor over JSON (RFC 8259), for the headers and the index of safetensors files
 *
 * Texts are unescaped in place, which never makes them longer, so nothing is allocated. Numbers are integers from 0 to
 * 2^63 - 1. Files of other programs may hold more; tt_json_skip accepts all of JSON. */
#include "base/base.h"

enum { DEPTH = 16 }; /* of brackets that tt_json_skip accepts: it recurses */

struct tt_json tt_json(char *s, size_t len) { return (struct tt_json){ .text = s, .at = s, .end = s + len }; }

static void fail(struct tt_json *j, const char *fault)
{
	if (!j->fault) {
		j->fault = fault;
		j->fault_at = (size_t)(j->at - j->text);
	}
	j->at = j->end;
}

static int peek(const struct tt_json *j) { return j->at < j->end ? (unsigned char)*j->at : -1; }
static bool is_digit(int c) { return c >= '0' && c <= '9'; }

static int next_token(struct tt_json *j) /* the first character of it; -1: the end */
{
	while (peek(j) == ' ' || peek(j) == '\t' || peek(j) == '\n' || peek(j) == '\r')
		j->at++;
	return peek(j);
}

static bool expect(struct tt_json *j, char c, const char *fault)
{
	bool there = next_token(j) == c;

	if (there)
		j->at++;
	else
		fail(j, j->at < j->end ? fault : "it ends too early");
	return there;
}

bool tt_json_enter(struct tt_json *j, char bracket)
{
	j->fresh = expect(j, bracket, bracket == '{' ? "here should be {" : "here should be [");
	return j->fresh;
}

bool tt_json_more(struct tt_json *j, char bracket)
{
	bool fresh = j->fresh;

	j->fresh = false;
	if (next_token(j) != bracket)
		return fresh ? peek(j) >= 0 || expect(j, bracket, "")
		             : expect(j, ',', bracket == '}' ? "here should be , or }" : "here should be , or ]");
	j->at++;
	return false;
}

/* ---- texts ---- */

/* The bytes of the first character; 0: not UTF-8 (an overlong form, a surrogate, beyond U+10FFFF). */
static size_t utf8_len(const char *text, size_t left)
{
	const uint8_t *p = (const uint8_t *)text;
	size_t n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;

	if (n > left)
		return 0;
	for (size_t i = 1; i < n; i++)
		if (p[i] >> 6 != 2)
			return 0;
	if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90) ||
	    (*p == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
}

bool tt_json_is_text(const char *s)
{
	size_t n = 1;

	for (size_t left = strlen(s); left && n; left -= n, s += n)
		n = utf8_len(s, left);
	return n;
}

static size_t put_utf8(char *to, uint32_t c)
{
	static const uint8_t lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
	size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

	for (size_t i = n - 1; i; i--, c >>= 6)
		to[i] = (char)(0x80 | (c & 0x3f));
	to[0] = (char)(lead[n] | c);
	return n;
}

static uint32_t take_hex4(struct tt_json *j) /* 0: not four digits; no text may hold 0 anyway */
{
	uint32_t v = 0;

	for (int i = 0; i < 4; i++, j->at++) {
		int c = peek(j), low = c | 0x20;
		if (!is_digit(c) && !(low >= 'a' && low <= 'f'))
			return 0;
		v = v << 4 | (uint32_t)(is_digit(c) ? c - '0' : low - 'a' + 10);
	}
	return v;
}

static size_t take_code(struct tt_json *j, char *to) /* behind \u */
{
	uint32_t c = take_hex4(j), low = 0;

	if (c >> 10 == 0x36 && j->end - j->at >= 6 && j->at[0] == '\\' && j->at[1] == 'u') {
		j->at += 2;
		low = take_hex4(j);
		c = low >> 10 == 0x37 ? 0x10000 + ((c & 0x3ff) << 10) + (low & 0x3ff) : 0;
	}
	if (c && c >> 11 != 0x1b)
		return put_utf8(to, c);
	fail(j, "no \\u with four hexadecimal digits that stand for a character");
	return 0;
}

static size_t take_escape(struct tt_json *j, char *to) /* behind the backslash */
{
	static const char names[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
	int c = peek(j);
	const char *known = c > 0 ? strchr(names, c) : NULL;

	if (c >= 0)
		j->at++;
	if (c == 'u')
		return take_code(j, to);
	if (!known) {
		fail(j, "an escape that JSON does not have");
		return 0;
	}
	*to = means[known - names];
	return 1;
}

const char *tt_json_text(struct tt_json *j)
{
	char *text, *to;

	if (!expect(j, '"', "here should be a text"))
		return "";
	for (text = to = j->at; peek(j) != '"';) {
		size_t n = 0;
		if (peek(j) < 0x20)
			fail(j, j->at < j->end ? "a control character in a text" : "it ends within a text");
		else if (*j->at == '\\')
			j->at++, to += take_escape(j, to);
		else if ((n = utf8_len(j->at, (size_t)(j->end - j->at)))) {
			memmove(to, j->at, n);
			to += n, j->at += n;
		} else
			fail(j, "a text that is not UTF-8");
		if (j->fault)
			return "";
	}
	j->at++;
	*to = 0;
	return text;
}

const char *tt_json_key(struct tt_json *j)
{
	const char *key = tt_json_text(j);

	expect(j, ':', "here should be :");
	return j->fault ? "" : key;
}

void tt_json_print(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++)
		if ((unsigned char)*s < 0x20)
			fprintf(f, "\\u%04x", *s);
		else
			fprintf(f, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
	fputc('"', f);
}

/* ---- numbers ---- */

uint64_t tt_json_number(struct tt_json *j)
{
	uint64_t v = 0;
	char *begin = (next_token(j), j->at);

	for (; is_digit(peek(j)) && v <= INT64_MAX / 10; j->at++)
		v = v * 10 + (uint64_t)(*j->at - '0');
	bool whole = j->at > begin && !(j->at - begin > 1 && *begin == '0');
	whole = whole && peek(j) != '.' && (peek(j) | 0x20) != 'e';
	if (j->fault || (whole && v <= INT64_MAX && !is_digit(peek(j))))
		return v;
	j->at = begin;
	fail(j, whole ? "a number above 2^63 - 1" : "here should be a whole number");
	return 0;
}

static bool pass_digits(struct tt_json *j)
{
	char *begin = j->at;

	while (is_digit(peek(j)))
		j->at++;
	return j->at > begin;
}

static void pass_number(struct tt_json *j)
{
	char *begin = j->at;

	j->at += *j->at == '-';
	bool good = peek(j) == '0' ? j->at++, true : pass_digits(j);
	if (good && peek(j) == '.')
		good = (j->at++, pass_digits(j));
	if (good && (peek(j) | 0x20) == 'e') {
		j->at++;
		j->at += peek(j) == '+' || peek(j) == '-';
		good = pass_digits(j);
	}
	if (good)
		return;
	j->at = begin;
	fail(j, "here should be a value");
}

/* ---- anything ---- */

static bool pass_word(struct tt_json *j)
{
	static const char *const words[] = { "true", "false", "null" };

	for (size_t i = 0; i < TT_COUNT(words); i++) {
		size_t n = strlen(words[i]);
		if ((size_t)(j->end - j->at) >= n && !memcmp(j->at, words[i], n)) {
			j->at += n;
			return true;
		}
	}
	return false;
}

static void pass(struct tt_json *j, int depth)
{
	int c = next_token(j);
	char close = c == '{' ? '}' : ']';

	if (c == '"')
		tt_json_text(j);
	else if (c == '{' || c == '[') {
		if (depth == DEPTH)
			fail(j, "brackets within brackets, too deep");
		for (tt_json_enter(j, (char)c); tt_json_more(j, close);) {
			if (c == '{')
				tt_json_key(j);
			pass(j, depth + 1);
		}
	} else if (c < 0)
		fail(j, "it ends too early");
	else if (!pass_word(j))
		pass_number(j);
}

void tt_json_skip(struct tt_json *j) { pass(j, 0); }

void tt_json_end(struct tt_json *j)
{
	if (next_token(j) >= 0)
		fail(j, "something behind the end");
}
