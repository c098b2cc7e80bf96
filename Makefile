# llm42d - build, check, install.  `make help` lists the targets.
#
# A source file is found by its folder: no list to edit, one rule a kind of file,
# everything under build/.

PREFIX  ?= /usr
DESTDIR ?=
BUILD   ?= build
CFLAGS  ?= -O2 -g
DEVICE  ?= cpu
VERSION := 0.1.0
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

WARNINGS   := -Wall -Wextra -Werror -Wshadow -Wconversion -Wstrict-prototypes \
              -Wmissing-prototypes -Wvla
# Last, so that CFLAGS cannot undo it: no contraction, the bits depend on it (SPEC 2.1).
ALL_CFLAGS  = -std=c11 -D_GNU_SOURCE -I. $(WARNINGS) \
              $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer) $(CFLAGS) \
              -ffp-contract=off -fno-fast-math
LIBS       := -Wl,--as-needed -ljansson -linih -lsystemd -lcrypto -ldl -lm -pthread
Q          := $(if $(V),,@)

# The daemon and all it computes with; the client library; the tools.
parts    := $(filter-out daemon/main.c,$(wildcard runtime/*.c daemon/*.c))
client   := $(wildcard tools/client*.c) daemon/wire.c daemon/wire_name.c
objects  := $(parts:%.c=$(BUILD)/%.o) $(BUILD)/runtime/ex2_sm90.o
programs := $(BUILD)/llm42d $(BUILD)/llm42ctl $(BUILD)/llm42-bench
tests    := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/*_test.c))
receipts := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tools/receipt*.c))
pages    := $(wildcard docs/*.[1-8].scd)

all: $(programs)      ## the daemon, llm42ctl and llm42-bench

demo:                 ## set up, build and see the promise kept on a real model
	$(Q)DEVICE=$(DEVICE) tests/demo

check:                ## set up, build and run everything that needs no GPU
	$(Q)tests/check

check-unit: $(tests)  ## the test programs alone, without set-up
	$(Q)tests/run $(tests)

check-service: $(programs) ## the daemon over its sockets, and under the real systemd
	$(Q)JOBS=1 BUILD=$(BUILD) tests/run $(wildcard tests/*_test.sh)

check-gpu: gpu-programs ## on a machine with an H200: every kernel and stage against the twin
	$(Q)tests/gpu

check-oracle: $(programs)  ## against other implementations (packages from PyPI; minutes)
	$(Q)BUILD=$(BUILD) tests/check-oracle

fuzz:                 ## every parser for FUZZ_SECONDS each (default 60)
	$(Q)tests/fuzz

bench: $(programs)    ## figures of this machine, each with its conditions
	$(Q)$(BUILD)/llm42-bench

lint: $(objects) $(BUILD)/daemon/main.o ## layers, names, arithmetic; notes on length
	$(Q)tests/lint $(BUILD)

format:               ## the layout of every C file, by clang-format
	$(Q)clang-format -i $(filter-out runtime/unicode_table.c,$(wildcard daemon/*.[ch] runtime/*.[ch] tools/*.[ch] tests/*.[ch]))

install: $(programs) $(BUILD)/libllm42.a $(pages:docs/%.scd=$(BUILD)/man/%) ## under DESTDIR and PREFIX
	$(Q)install -d $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/llm42 \
	    $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(PREFIX)/lib/sysusers.d \
	    $(DESTDIR)$(PREFIX)/lib/tmpfiles.d $(DESTDIR)$(PREFIX)/include $(DESTDIR)/etc/llm42 \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(Q)install -m 755 $(BUILD)/llm42d $(DESTDIR)$(PREFIX)/sbin/
	$(Q)install -m 755 $(BUILD)/llm42ctl $(BUILD)/llm42-bench $(DESTDIR)$(PREFIX)/bin/
	$(Q)install -m 644 $(BUILD)/libllm42.a $(DESTDIR)$(PREFIX)/lib/
	$(Q)sed 's|"daemon/wire.h"|"llm42_wire.h"|' tools/llm42.h > $(BUILD)/llm42.h
	$(Q)install -m 644 $(BUILD)/llm42.h $(DESTDIR)$(PREFIX)/include/
	$(Q)install -m 644 daemon/wire.h $(DESTDIR)$(PREFIX)/include/llm42_wire.h
	$(Q)for unit in $(notdir $(wildcard systemd/*.service systemd/*.socket)); do \
	    sed 's|/usr/sbin/llm42d|$(PREFIX)/sbin/llm42d|' systemd/$$unit > $(BUILD)/$$unit && \
	    install -m 644 $(BUILD)/$$unit $(DESTDIR)$(PREFIX)/lib/systemd/system/ || exit 1; done
	$(Q)install -m 644 systemd/llm42d.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/llm42d.conf
	$(Q)install -m 644 systemd/llm42d.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/llm42d.conf
	$(Q)install -m 644 systemd/llm42d.conf $(DESTDIR)$(PREFIX)/lib/llm42/
	$(Q)sed 's|/usr/lib/llm42|$(PREFIX)/lib/llm42|' systemd/llm42d-cuda.conf > $(BUILD)/llm42d-cuda.conf
	$(Q)install -m 644 $(BUILD)/llm42d-cuda.conf $(DESTDIR)$(PREFIX)/lib/llm42/
	$(Q)install -m 644 systemd/llm42ctl.bash-completion \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/llm42ctl
	$(Q)for page in $(notdir $(pages:.scd=)); do \
	    install -D -m 644 $(BUILD)/man/$$page $(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/$$page; done

uninstall:            ## what install placed, configuration aside
	$(Q)[ ! -d $(DESTDIR)$(PREFIX) ] || cd $(DESTDIR)$(PREFIX) && rm -f sbin/llm42d bin/llm42ctl bin/llm42-bench lib/libllm42.a \
	    include/llm42.h include/llm42_wire.h $(addprefix lib/systemd/system/,$(notdir $(wildcard systemd/*.service systemd/*.socket))) \
	    lib/sysusers.d/llm42d.conf lib/tmpfiles.d/llm42d.conf lib/llm42/llm42d.conf lib/llm42/llm42d-cuda.conf share/bash-completion/completions/llm42ctl \
	    $(foreach page,$(notdir $(pages:.scd=)),share/man/man$(subst .,,$(suffix $(page)))/$(page))

clean:                ## remove what was built
	rm -rf build build-*

help:                 ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile | expand -t 18

$(BUILD)/llm42d.a: $(objects) Makefile
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $(filter %.o,$^)

$(BUILD)/libllm42.a: $(client:%.c=$(BUILD)/%.o) Makefile
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $(filter %.o,$^)

$(BUILD)/llm42d $(BUILD)/gpu/llm42d: $(BUILD)/daemon/main.o $(BUILD)/llm42d.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $^ $(LIBS) -o $@

$(BUILD)/llm42ctl $(BUILD)/gpu/llm42ctl: $(patsubst %.c,$(BUILD)/%.o,$(wildcard tools/llm42ctl.c tools/ctl_*.c tools/receipt*.c)) $(BUILD)/libllm42.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $^ $(LIBS) -o $@

$(BUILD)/llm42-bench $(BUILD)/gpu/llm42-bench: $(patsubst %.c,$(BUILD)/%.o,$(wildcard tools/llm42-bench.c tools/bench_*.c)) $(BUILD)/llm42d.a $(BUILD)/libllm42.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $^ $(LIBS) -o $@

# Other flags, or a toolkit that came or went: everything is compiled again.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(ALL_CFLAGS)' | cmp -s - $@ || echo '$(CC) $(ALL_CFLAGS)' > $@

$(BUILD)/commit: FORCE
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -DLLM42_VERSION='"$(VERSION)"' -MMD -MP -c $< -o $@

# Which commit this is, in one file, so that a commit does not rebuild the rest.
$(BUILD)/daemon/version.o: private ALL_CFLAGS += -DLLM42_COMMIT='"$(COMMIT)"'
$(BUILD)/daemon/version.o: $(BUILD)/commit

# The exp2 table of attention weights is part of the program (SPEC 2.7).
$(BUILD)/runtime/ex2_sm90.o: runtime/ex2_sm90.bin
	@mkdir -p $(@D)
	$(Q)cd $(<D) && $(LD) -r -b binary -z noexecstack $(<F) -o $(abspath $@)

$(BUILD)/tests/%_test: tests/%_test.c $(BUILD)/llm42d.a $(BUILD)/libllm42.a $(receipts)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -MF $@.d $< $(receipts) $(BUILD)/llm42d.a \
	    $(BUILD)/libllm42.a $(LIBS) -lcmocka -o $@

# Where no thread can be had.
$(BUILD)/tests/weights_feed_test: private ALL_CFLAGS += -Wl,--wrap=pthread_create

# Whole daemons for tests/fault_test.sh: over a device that goes wrong, and built without CUDA.
$(BUILD)/tests/llm42d-fault: tests/fault_daemon.c $(BUILD)/daemon/main.o $(BUILD)/llm42d.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -MF $@.d $< $(BUILD)/daemon/main.o $(BUILD)/llm42d.a \
	    -Wl,--wrap=device_cpu_open $(LIBS) -o $@

$(BUILD)/tests/llm42d-nocuda: runtime/device_cuda.c $(BUILD)/daemon/main.o $(BUILD)/llm42d.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -ULLM42_CUDA -MMD -MP -MF $@.d $< $(BUILD)/daemon/main.o \
	    $(BUILD)/llm42d.a $(LIBS) -o $@

$(BUILD)/tests/%_fuzz: tests/%_fuzz.c $(BUILD)/llm42d.a $(BUILD)/libllm42.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer -MMD -MP -MF $@.d $< $(BUILD)/llm42d.a \
	    $(BUILD)/libllm42.a $(LIBS) -o $@

$(BUILD)/man/%: docs/%.scd
	@mkdir -p $(@D)
	$(Q)scdoc < $< > $@

-include ptx/kernels.mk
-include $(wildcard $(BUILD)/*/*.d)
.PHONY: all demo check check-unit check-gpu check-service check-oracle fuzz bench lint format install \
        uninstall clean help
.SECONDARY:
.DELETE_ON_ERROR:
