# llm42d - build, check, install.  `make help` lists the targets.
#
# A source file is found by its folder: no list to edit, one rule a kind of file,
# everything under build/.

PREFIX  ?= /usr
DESTDIR ?=
BUILD   ?= build
CFLAGS  ?= -O2 -g
VERSION := 0.1.0
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

WARNINGS   := -Wall -Wextra -Werror -Wshadow -Wconversion -Wstrict-prototypes \
              -Wmissing-prototypes -Wvla
# Last, so that CFLAGS cannot undo it: no contraction, the bits depend on it (SPEC.md 2).
ALL_CFLAGS  = -std=c11 -D_GNU_SOURCE -I. $(WARNINGS) \
              $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer) $(CFLAGS) \
              -ffp-contract=off -fno-fast-math
LIBS        = -Wl,--as-needed -ljansson -linih -lsystemd -lcrypto -ldl -lm -pthread
Q          := $(if $(V),,@)

library  := $(filter-out daemon/main.c,$(wildcard runtime/*.c daemon/*.c))
client   := $(wildcard tools/llm42*.c tools/client.c)
objects  := $(library:%.c=$(BUILD)/%.o) $(BUILD)/runtime/ex2_sm90.o
tests    := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/*_test.c))

all: $(BUILD)/llm42d.a $(tests)

clean:
	rm -rf build build-*

$(BUILD)/llm42d.a: $(objects)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

# The exp2 table of attention weights is part of the program (SPEC.md 2.7).
$(BUILD)/runtime/ex2_sm90.o: runtime/ex2_sm90.bin
	@mkdir -p $(@D)
	$(Q)cd $(<D) && $(LD) -r -b binary -z noexecstack $(<F) -o $(abspath $@)

$(BUILD)/tests/%: tests/%.c $(BUILD)/llm42d.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP $< $(BUILD)/llm42d.a $(LIBS) -lcmocka -o $@

-include $(wildcard $(BUILD)/*/*.d)
.PHONY: all clean
.SECONDARY:
.DELETE_ON_ERROR:
