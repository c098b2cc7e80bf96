# The kernels: images of ptx/*.cu and ptx/*.ptx, their table, and the CUDA device itself where a
# toolkit is.  Included by the Makefile; a kernel is found by its file, there is no list to edit.
#
#   CUDA   the toolkit's folder: its headers and ptxas
#
# Without one the program is built without the CUDA device, and says so; the sources of kernels are
# part of it all the same, so that tests can compile them where NVRTC alone is.

CUDA  ?= /usr/local/cuda
PTXAS ?= $(CUDA)/bin/ptxas
SM    := sm_90a

kernel_sources := $(sort $(wildcard ptx/*.cu))
ifneq ($(and $(wildcard $(CUDA)/include/cuda.h),$(wildcard $(PTXAS))),)
kernel_sources += $(sort $(wildcard ptx/*.ptx))
ALL_CFLAGS += -DLLM42_CUDA -isystem $(CUDA)/include
endif
kernel_names   := $(notdir $(basename $(kernel_sources)))
kernel_objects := $(patsubst %,$(BUILD)/ptx/%.o,$(kernel_names)) $(BUILD)/ptx/kernels_table.o

$(BUILD)/llm42d.a: $(kernel_objects)

# Kernels of both kinds pass through the C preprocessor, so that they share constants and
# runtime/num.h with the C files; it leaves line marks, so errors name our own lines.
$(BUILD)/ptx/%.image: ptx/%.ptx ptx/BUDGET
	@mkdir -p $(@D)
	$(Q)$(CC) -E -undef -nostdinc -x assembler-with-cpp -I. -MMD -MP -MT $@ -MF $(@D)/$(<F).dep $< -o $@.ptx
	$(Q)$(PTXAS) -v --warning-as-error -arch=$(SM) $@.ptx -o $@ > $@.log 2>&1 || { cat $@.log; exit 1; }
	$(Q)awk -v name=$(*F) 'FNR == NR { if ($$1 == name) budget = $$2; next } \
	    /[1-9][0-9]* bytes (stack|spill)/ { bad = 1 } \
	    match($$0, /Used [0-9]+/) && substr($$0, RSTART + 5, RLENGTH - 5) + 0 > budget + 0 { bad = 1 } \
	    { log_text = log_text $$0 "\n" } END { if (bad) print log_text "its budget: " budget; exit bad }' \
	    ptx/BUDGET $@.log

$(BUILD)/ptx/%.image: ptx/%.cu
	@mkdir -p $(@D)
	$(Q)$(CC) -E -undef -nostdinc -D__CUDACC_RTC__ -x c++ -I. -MMD -MP -MT $@ -MF $(@D)/$(<F).dep $< -o $@
	$(Q)printf '\0' >> $@

$(BUILD)/ptx/%.o: $(BUILD)/ptx/%.image
	$(Q)cd $(@D) && $(LD) -r -b binary -z noexecstack $(<F) -o $(@F)

# Of the sources that are: one that went leaves no rule behind.
-include $(kernel_sources:ptx/%=$(BUILD)/ptx/%.dep)

# What tests take for a driver and for NVRTC (tests/stub_cuda/stub.h); memory that fails, and
# launches that are looked at.
ifneq ($(findstring LLM42_CUDA,$(ALL_CFLAGS)),)
stubs := $(addprefix $(BUILD)/tests/stub_cuda/,libcuda.so.1 libnvrtc.so.13 libnccl.so.2)
$(BUILD)/tests/cuda_stub_test: | $(stubs)
$(BUILD)/tests/cuda_stub_test: LIBS += -Wl,--wrap=malloc,--wrap=calloc
$(BUILD)/tests/cuda_gemm_test: LIBS += -Wl,--wrap=cuda_driver_entry,--wrap=cuda_driver_launch
$(BUILD)/tests/stub_cuda/libcuda.so.1: tests/stub_cuda/cuda.c
$(BUILD)/tests/stub_cuda/libnvrtc.so.13: tests/stub_cuda/nvrtc.c
$(BUILD)/tests/stub_cuda/libnccl.so.2: tests/stub_cuda/nccl.c
$(stubs):
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -fPIC -shared -Wl,-soname,$(@F) -MMD -MP -MF $@.d $< -o $@
-include $(stubs:%=%.d)

# Kernels for the host, in C++, which nothing but tests is made of (tests/sim/sim.h).
CXX := $(if $(filter default,$(origin CXX)),$(if $(findstring clang,$(CC)),clang++,g++),$(CXX))
sim_attn := $(filter sm90_attn_bf16_%,$(kernel_names))
sim_gemm := $(filter-out %few8,$(filter sm90_gemm_bf16_%,$(kernel_names)))
sim_sample := $(filter sm90_sample_%,$(kernel_names))
sim_core := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/sim/*.c))
# The simulator is fast under sanitizers too; its arithmetic, which mma_step looks after, is without.
$(sim_core): private ALL_CFLAGS += -O2
$(BUILD)/tests/sim/sim_mma.o: private ALL_CFLAGS += $(if $(SAN),-fno-sanitize=all)
ifneq ($(shell command -v $(CXX)),)
$(BUILD)/tests/sim_%: private ALL_CFLAGS += -DLLM42_SIM
$(BUILD)/tests/sim_attn_test: $(sim_core) $(sim_attn:%=$(BUILD)/tests/sim/%.o)
$(BUILD)/tests/sim_attn_test: LIBS += $(sim_core) $(sim_attn:%=$(BUILD)/tests/sim/%.o) \
    -Wl,--wrap=cuda_driver_entry,--wrap=cuda_driver_launch
$(BUILD)/tests/sim_gemm_test: $(sim_core) $(sim_gemm:%=$(BUILD)/tests/sim/%.o)
$(BUILD)/tests/sim_gemm_test: LIBS += $(sim_core) $(sim_gemm:%=$(BUILD)/tests/sim/%.o) \
    -Wl,--wrap=cuda_driver_entry,--wrap=cuda_driver_launch
$(BUILD)/tests/sim_sample_test: $(sim_core) $(sim_sample:%=$(BUILD)/tests/sim/%.o)
$(BUILD)/tests/sim_sample_test: LIBS += $(sim_core) $(sim_sample:%=$(BUILD)/tests/sim/%.o) $(BUILD)/llm42d.a
endif

$(BUILD)/tests/sim/sm90_%.o: ptx/sm90_%.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)printf '#include "$<"\nSIM_KERNEL(sm90_$*)\n' | $(CXX) -std=c++17 -x c++ -Itests/sim -I. -w \
	    -Wno-psabi -fno-strict-aliasing -fno-rtti -fno-exceptions \
	    $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize=vptr -fno-omit-frame-pointer) $(CFLAGS) \
	    -ffp-contract=off -fno-fast-math -MMD -MP -MT $@ -MF $@.d -c - -o $@
-include $(wildcard $(BUILD)/tests/sim/*.d)
endif

# Rewritten only where it changes: a kernel that comes or goes.  Tests run make, too, at once.
$(BUILD)/ptx/kernels_table.c: FORCE
	@mkdir -p $(@D)
	@{ echo '#include "runtime/kernels.h"'; \
	   echo 'extern const struct kernel kernels_table[];'; \
	   echo 'extern const uint32_t kernels_table_count;'; \
	   for k in $(kernel_names); do echo "extern const char _binary_$${k}_image_start[];"; done; \
	   echo 'const struct kernel kernels_table[] = {'; \
	   for k in $(kernel_sources); do n=$${k##*/}; n=$${n%.*}; s=false; \
	       case $$k in *.cu) s=true ;; esac; \
	       echo "    {\"$$n\", _binary_$${n}_image_start, $$s},"; done; \
	   echo '};'; \
	   echo 'const uint32_t kernels_table_count = $(words $(kernel_names));'; } > $@.$$$$; \
	 cmp -s $@.$$$$ $@ && rm $@.$$$$ || mv $@.$$$$ $@

$(BUILD)/ptx/kernels_table.o: $(BUILD)/ptx/kernels_table.c
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

.PHONY: FORCE gpu-programs

# Programs that run where there is a GPU and little else: what they link is in them, but for libc
# and libsystemd, which even small systems have.
gpu_tests := $(patsubst tests/%.c,$(BUILD)/gpu/%,$(wildcard tests/device_cuda_*.c tests/jit_test.c tests/kernel_*test.c))
# Of engines, on the twin or with LLM42_DEVICE=cuda on the GPU; and of the twin's products, for a GPU's
# host has other vector units.  cmocka's library goes along.
gpu_engine_tests := $(patsubst %,$(BUILD)/gpu/%,golden_test determinism_test window_test soak_test cpu_gemm_test)

gpu-programs: $(gpu_tests) $(gpu_engine_tests) $(programs:$(BUILD)/%=$(BUILD)/gpu/%)

$(gpu_engine_tests): LIBS += -L$(BUILD)/gpu -l:libcmocka.so.0 -Wl,-rpath,'$$ORIGIN'
$(gpu_engine_tests): | $(BUILD)/gpu/libcmocka.so.0
$(BUILD)/gpu/libcmocka.so.0:
	@mkdir -p $(@D)
	$(Q)cp -L "$$($(CC) -print-file-name=libcmocka.so.0)" $@

$(BUILD)/gpu/%: LIBS := -Wl,--as-needed -l:libjansson.a -l:libinih.a -l:libcrypto.a \
    -l:libsystemd.so.0 -ldl -lm -pthread

$(BUILD)/gpu/%: tests/%.c $(BUILD)/llm42d.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -MF $@.d $< $(BUILD)/llm42d.a $(LIBS) -o $@
