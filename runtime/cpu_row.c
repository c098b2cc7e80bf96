#include "runtime/cpu_row.h"

#include "runtime/num.h"

/* The balanced tree over adjacent pairs, in place; an absent partner is +0, a no-op. */
static float tree(float *v, uint32_t n) {
    while (n > 1) {
        uint32_t half = n / 2;

        for (uint32_t i = 0; i < half; i++) v[i] = v[2 * i] + v[2 * i + 1];
        if (n % 2) v[half] = v[n - 1];
        n = half + n % 2;
    }
    return v[0];
}

float cpu_row_max(const float *x, uint32_t n) {
    float top = x[0];

    for (uint32_t i = 1; i < n; i++) top = num_max(top, x[i]);
    return top;
}

void cpu_row_norm(const uint16_t *x, const uint16_t *w, uint32_t n, float eps, uint32_t run,
                  float *squares, uint16_t *out_y) {
    float r;

    for (uint32_t i = 0; i < n; i += run) {
        float q = 0.0f;

        for (uint32_t j = i; j < i + run && j < n; j++)
            q = q + num_from_bf16(x[j]) * num_from_bf16(x[j]);
        squares[i / run] = q;
    }
    r = 1.0f / num_sqrt(tree(squares, (n + run - 1) / run) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        float normal = num_from_bf16(num_to_bf16(num_from_bf16(x[i]) * r));

        out_y[i] = num_to_bf16(num_from_bf16(w[i]) * normal);
    }
}

void cpu_row_round(const float *y, uint32_t n, uint16_t *out) {
    for (uint32_t i = 0; i < n; i++) out[i] = num_to_bf16(y[i]);
}

void cpu_row_add(uint16_t *x, const float *y, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        x[i] = num_to_bf16(num_from_bf16(x[i]) + num_from_bf16(num_to_bf16(y[i])));
}

void cpu_row_rotate(uint16_t *head, uint32_t head_dim, const uint16_t *cos, const uint16_t *sin) {
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        float low = num_from_bf16(head[i]), high = num_from_bf16(head[i + head_dim / 2]);
        float c = num_from_bf16(cos[i]), s = num_from_bf16(sin[i]);

        head[i] = num_to_bf16(low * c - high * s);
        head[i + head_dim / 2] = num_to_bf16(high * c + low * s);
    }
}
