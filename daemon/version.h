/* version - which program this is.
 *
 * Owns:   nothing.
 * Thread: any.
 *
 * In a file of its own, so that a commit does not rebuild the rest. */
#ifndef LLM42D_DAEMON_VERSION_H
#define LLM42D_DAEMON_VERSION_H

const char *version_number(void);  /* 0.1.0 */
const char *version_commit(void);  /* its first twelve digits, or "unknown" */
const char *version_whole(void);   /* 0.1.0 (c7f17c642008) */
const char *version_devices(void); /* that were built in: "cpu" or "cpu cuda" */

#endif
