/* file - reading of regular files, whole or in part, against a size that is known beforehand.
 *
 * Owns:   nothing; descriptors and texts belong to the caller.
 * Thread: any.
 * Fails:  -ENOENT -EACCES -ENOMEM
 *         -EINVAL  not a regular file, or larger than the caller's limit
 *         -EIO     of the system (the text says what), or the file is shorter than it was
 *
 * Nothing is mapped: a file that shrinks is an error, not a signal. */
#ifndef LLM42D_RUNTIME_FILE_H
#define LLM42D_RUNTIME_FILE_H

#include <stddef.h>
#include <stdint.h>

struct err;

/* For reading, close-on-exec. */
int file_open(const char *path, int *out_fd, uint64_t *out_n_bytes, struct err *e);

/* All n_bytes from off on, or a failure; `path` stands in the text. */
int file_read_at(int fd, const char *path, uint64_t off, void *out_bytes, size_t n_bytes,
                 struct err *e);

/* The whole file in memory, with a zero after it that does not count; to be freed. */
int file_read(const char *path, size_t n_bytes_max, char **out_text, size_t *out_n_bytes,
              struct err *e);

#endif
