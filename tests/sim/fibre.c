#include "tests/sim/fibre.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static void *spare;  /* a list through the stacks' first words */
static void *caller; /* of enter */

#ifdef __x86_64__

/* By hand, for ucontext.h asks the kernel at each switch. */
void fibre_switch(void **save, void *to);
__asm__(".text\n"
        "fibre_switch:\n"
        "    push %rbx\n    push %rbp\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbp\n    pop %rbx\n"
        "    ret\n");

static void *first_place(void *stack, size_t n_bytes, void (*run)(void)) {
    void **top = (void **)((char *)stack + n_bytes) - 8;

    /* Six registers, where to go, and whom a frame would return to. */
    for (int i = 0; i < 8; i++) top[i] = NULL;
    top[6] = (void *)(uintptr_t)run;
    return top;
}

#else
#error "tests/sim/fibre.c: a switch of stacks for this processor is not there"
#endif

void fibre_open(struct fibre *f, size_t stack_bytes, void (*run)(void)) {
    f->stack = spare;
    if (spare) {
        spare = *(void **)spare;
    } else {
        f->stack = mmap(NULL, stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (f->stack == MAP_FAILED) {
            printf("no memory for a stack\n");
            exit(1);
        }
    }
    f->place = first_place(f->stack, stack_bytes, run);
}

void fibre_close(struct fibre *f) {
    *(void **)f->stack = spare;
    spare = f->stack;
}

void fibre_enter(struct fibre *f) {
    fibre_switch(&caller, f->place);
}

void fibre_leave(struct fibre *f) {
    fibre_switch(&f->place, caller);
}
