/* Digests of whole requests, stored as an H200 computed them: every device must give them again.
 * This ties what runs without a GPU to the hardware whose arithmetic the contract is.
 *
 *   LLM42_DEVICE=cuda   on the GPU
 *   GOLDEN_PRINT=1      prints the lines of tests/data/golden.txt instead of comparing */
#include "tests/harness.h"
#include "tests/test_device.h"

#include <sys/stat.h>
#include <unistd.h>

#include "runtime/sha256.h"
#include "runtime/token.h"

enum { N_REQUESTS = 6, PROMPT_MAX = 700, LINE_MAX_BYTES = 128 };

static const char golden_file[] = "tests/data/golden.txt";

static const char *const texts[] = {
    "The king said unto the woman, Fear not:",
    "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer",
    "And it came to pass in those days, that there went out a decree from",
    "Once upon a time there was a daemon that always gave the same answer.",
    "1 + 1 = 2, 2 + 2 = 4, 4 + 4 =",
    "\xc3\x89t\xc3\xa9, \xe6\x98\xa5, \xd0\xb7\xd0\xb8\xd0\xbc\xd0\xb0: ",
};

/* Greedy; drawn; drawn with every filter; greedy with everything reported; a prompt of more than
 * one split; drawn and hot. */
static struct engine_request request_of(uint32_t i, const uint32_t *prompt, uint32_t n,
                                        uint32_t max_tokens) {
    struct engine_request r = harness_request(prompt, n, max_tokens);

    r.ignore_eos = true;
    r.params.seed = 1000 + i;
    if (i == 1) r.params.temperature = 0.7f;
    if (i == 2) r.params = (struct sample_params){1.0f, 0.9f, 0.01f, 50, 11};
    if (i == 3) {
        r.n_top = 5;
        r.prompt_logprobs = true;
        r.n_prompt_top = 2;
    }
    if (i == 5) r.params.temperature = 1.5f;
    return r;
}

static uint32_t encode(const char *model, uint32_t i, uint32_t *out_ids) {
    struct token *token = NULL;
    struct err e = {{0}};
    char path[256];
    uint32_t n = 0, want = i == 4 ? 560 : 1;

    (void)snprintf(path, sizeof(path), "%s/tokenizer.json", model);
    if (token_open(path, &token, &e) < 0) fail_msg("%s", e.text);
    while (n < want) {
        int64_t more =
            token_encode(token, texts[i], strlen(texts[i]), 0, out_ids + n, PROMPT_MAX - n, &e);

        if (more < 0) fail_msg("%s", e.text);
        n += (uint32_t)more;
    }
    token_close(token);
    return n;
}

struct golden {
    const char *name;
    const char *folder;
    uint64_t random_seed;
    uint32_t max_tokens;
};

static void line_of(const struct golden *g, uint32_t i, const uint8_t digest[32], char *line) {
    char hex[SHA256_HEX_BYTES];

    sha256_hex(digest, hex);
    (void)snprintf(line, LINE_MAX_BYTES, "%s %u %s\n", g->name, i, hex);
}

static bool is_golden(const char *line) {
    char each[LINE_MAX_BYTES];
    FILE *f = fopen(golden_file, "r");
    bool found = false;

    assert_non_null(f);
    while (!found && fgets(each, sizeof(each), f)) found = strcmp(each, line) == 0;
    (void)fclose(f);
    return found;
}

/* All at once, so that they share steps. */
static void run(const struct golden *g, enum plan_policy policy, uint32_t window,
                uint32_t step_tokens) {
    struct engine_options o = harness_options();
    static uint32_t ids[N_REQUESTS][PROMPT_MAX];
    const struct harness_result *results[N_REQUESTS];
    struct harness h;

    o.model_path = g->folder;
    o.random_seed = g->random_seed;
    o.policy = policy;
    o.window = window;
    o.context = 1024;
    o.step_tokens = step_tokens;
    harness_open(&h, &o, test_device_open(2, false));
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const uint32_t n = encode(g->folder, i, ids[i]);
        const struct engine_request r = request_of(i, ids[i], n, g->max_tokens);

        results[i] = harness_submit(&h, &r);
    }
    harness_finish(&h);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        char line[LINE_MAX_BYTES];

        assert_true(results[i]->ended && !results[i]->failed);
        line_of(g, i, results[i]->digest, line);
        if (getenv("GOLDEN_PRINT")) {
            fputs(line, stdout);
        } else if (!is_golden(line)) {
            fail_msg("policy %s, window %u: not in %s: %s", plan_policy_name(policy), window,
                     golden_file, line);
        }
    }
    harness_close(&h);
}

static void run_all(const struct golden *g) {
    run(g, PLAN_CANONICAL, 32, 64);
    if (getenv("GOLDEN_PRINT")) return;
    run(g, PLAN_TUNED, 7, 300);
}

static void test_verse(void **state) {
    const struct golden g = {"verse-4m", HARNESS_MODEL, 0, 48};

    (void)state;
    run_all(&g);
}

static void write_file(const char *folder, const char *name, const char *text) {
    char path[256];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* The shape of Llama-3.1: heads of 128, eight of keys and values, a head of its own. */
static const char llama_config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 1024,"
    " \"intermediate_size\": 1792, \"num_hidden_layers\": 3, \"num_attention_heads\": 16,"
    " \"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 2048,"
    " \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-05, \"rope_theta\": 500000.0,"
    " \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0,"
    " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 256},"
    " \"tie_word_embeddings\": false, \"bos_token_id\": 0, \"eos_token_id\": 1}";

static void test_made_up(void **state) {
    char folder[] = "/tmp/golden_test.XXXXXX", to[64], from[512];
    const struct golden g = {"made-up", folder, 2026, 24};

    (void)state;
    assert_non_null(mkdtemp(folder));
    write_file(folder, "config.json", llama_config);
    (void)snprintf(to, sizeof(to), "%s/tokenizer.json", folder);
    assert_non_null(getcwd(from, sizeof(from) - 64));
    strcat(from, "/" HARNESS_MODEL "/tokenizer.json");
    assert_int_equal(symlink(from, to), 0);
    run_all(&g);
    (void)unlink(to);
    (void)snprintf(to, sizeof(to), "%s/config.json", folder);
    (void)unlink(to);
    (void)rmdir(folder);
}

static void test_smollm2(void **state) {
    const char *folder = getenv("GOLDEN_SMOLLM2");
    const struct golden g = {"SmolLM2-135M-Instruct",
                             folder ? folder : "models/SmolLM2-135M-Instruct", 0, 16};
    struct stat st;
    char path[256];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", g.folder);
    if (stat(path, &st) < 0) {
        print_message("%s is not here\n", g.folder);
        skip();
    }
    run_all(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verse),
        cmocka_unit_test(test_made_up),
        cmocka_unit_test(test_smollm2),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
