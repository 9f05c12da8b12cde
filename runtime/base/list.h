/* list.h - an intrusive doubly linked list; the head is a node too */
#ifndef TT_LIST_H
#define TT_LIST_H
#include <stdbool.h>
#include <stddef.h>

struct tt_list {
	struct tt_list *next, *prev;
};

static inline void tt_list_init(struct tt_list *head) { head->next = head->prev = head; }
static inline bool tt_list_empty(const struct tt_list *head) { return head->next == head; }

static inline void tt_list_append(struct tt_list *head, struct tt_list *node)
{
	node->prev = head->prev;
	node->next = head;
	head->prev->next = node;
	head->prev = node;
}

/* Appends a node that is in no list. */
static inline void tt_list_append_once(struct tt_list *head, struct tt_list *node)
{
	if (tt_list_empty(node))
		tt_list_append(head, node);
}

static inline void tt_list_prepend(struct tt_list *head, struct tt_list *node) { tt_list_append(head->next, node); }

/* A removed node points to itself, so removing it again is harmless. */
static inline void tt_list_remove(struct tt_list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	tt_list_init(node);
}

static inline struct tt_list *tt_list_pop(struct tt_list *head)
{
	struct tt_list *node = head->next;

	if (node == head)
		return NULL;
	tt_list_remove(node);
	return node;
}

/* The body may remove the current node, and no other. */
#define tt_list_each(node, head) \
	for (struct tt_list *node = (head)->next, *node##_next = node->next; node != (head); \
	     node = node##_next, node##_next = node->next)

/* Not &v->link: at the end of a walk v is no struct, and its address may be one that no struct of this type has. */
#define tt_link_of(type, link, v) ((struct tt_list *)(void *)((char *)(v) + offsetof(type, link)))
/* Likewise the structs that are in the list by their member `link`. */
#define tt_each_of(type, link, v, head) \
	for (type *v = tt_container_of((head)->next, type, link), *v##_next; \
	     tt_link_of(type, link, v) != (head) && (v##_next = tt_container_of(v->link.next, type, link), 1); \
	     v = v##_next)
#endif
