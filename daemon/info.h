/* info - what INFO answers: the server about itself, as JSON.
 *
 * Owns:   nothing.
 * Thread: the loop's. */
#ifndef LLM42D_DAEMON_INFO_H
#define LLM42D_DAEMON_INFO_H

#include <stdint.h>

struct serve;

/* The text of a topic (enum wire_info), to be freed; NULL for an unknown topic or no memory. */
char *info_text(const struct serve *s, uint32_t topic, uint64_t now_us);

/* One human line for STATUS= and the log. */
void info_status_line(const struct serve *s, char *text, uint32_t n_bytes);

#endif
