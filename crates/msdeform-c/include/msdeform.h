/*
 * msdeform: multi-scale deformable attention, forward and backward, on CPUs and NVIDIA GPUs.
 *
 * A problem describes a call. A plan prepares it once, and then computes it any number of times:
 *
 *     msdeform_problem_create -> msdeform_cpu_plan_create -> msdeform_cpu_forward, msdeform_cpu_backward
 *     msdeform_cuda_engine_create -> msdeform_cuda_plan_create -> msdeform_cuda_launch
 *
 * Rules that hold for every function:
 *
 * - It returns a msdeform_status. MSDEFORM_STATUS_OK is 0; anything else means that nothing was computed, unless the
 *   code is MSDEFORM_STATUS_NO_MEMORY or MSDEFORM_STATUS_PANICKED. After these two, outputs are undefined.
 * - The text of an error goes into memory of the caller (msdeform_message, may be null). There is no errno, no last
 *   error and no other state outside of the handles.
 * - Null pointers, misaligned pointers, unknown constants and lengths that do not fit are errors. What cannot be
 *   checked is the caller's promise: that a pointer leads to as many bytes as the call states, that a handle was made
 *   by this library and not destroyed, and that no other code writes to memory that a call uses.
 * - A handle that could not be made is null. Handles are destroyed by the function named for it, which takes null.
 * - Structs that may grow begin with struct_size, which is their sizeof; what is not set must be zero. A program works
 *   with any library of the same MSDEFORM_ABI_VERSION, older or newer than its header.
 * - Enumerations are passed as int32_t, and are checked.
 * - No exception and no panic leaves a function.
 *
 * The comment of each function states which threads may call it, and when.
 */

#ifndef MSDEFORM_H
#define MSDEFORM_H

/* Generated from the sources of msdeform-c; see its cbindgen.toml. */

#include <stddef.h>
#include <stdint.h>

/** The version of this header. */
#define MSDEFORM_VERSION "0.1.0"

/**
 * The version of the binary interface that this header describes. It goes up when something that exists changes; what
 * is added leaves it as it is. `msdeform_abi_version()` is that of the library that was found at run time.
 */
#define MSDEFORM_ABI_VERSION 1

/**
 * What the address of a CUDA workspace must be a multiple of.
 */
#define MSDEFORM_CUDA_WORKSPACE_ALIGNMENT 256

/**
 * What a function answers. Codes are never given a new meaning; new ones may come.
 */
enum msdeform_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * It is done.
     */
    MSDEFORM_STATUS_OK = 0,
    /**
     * A pointer that must lead somewhere is null.
     */
    MSDEFORM_STATUS_NULL_POINTER = 1,
    /**
     * A pointer is not a multiple of what its type needs.
     */
    MSDEFORM_STATUS_MISALIGNED = 2,
    /**
     * A number that is not a constant of its enumeration, or an unknown name.
     */
    MSDEFORM_STATUS_UNKNOWN_CONSTANT = 3,
    /**
     * A `struct_size` that no version of the header has, or a field of a newer version that this library does not know.
     */
    MSDEFORM_STATUS_STRUCT_SIZE = 4,
    /**
     * Sizes, levels or lists of a description that do not fit each other.
     */
    MSDEFORM_STATUS_BAD_PROBLEM = 5,
    /**
     * A rule for offsets that cannot be followed.
     */
    MSDEFORM_STATUS_BAD_OFFSETS = 6,
    /**
     * A tensor with too few bytes, or with others than its shape has.
     */
    MSDEFORM_STATUS_BAD_LENGTH = 7,
    /**
     * Strides that cannot be followed, or that this tensor cannot have.
     */
    MSDEFORM_STATUS_BAD_STRIDES = 8,
    /**
     * A tensor that is written lies over another one.
     */
    MSDEFORM_STATUS_OVERLAP = 9,
    /**
     * A tensor that the call does not have.
     */
    MSDEFORM_STATUS_WRONG_TENSOR = 10,
    /**
     * A problem that the backend, the instruction set or the variant does not compute.
     */
    MSDEFORM_STATUS_UNSUPPORTED = 11,
    /**
     * The system gives no memory.
     */
    MSDEFORM_STATUS_NO_MEMORY = 12,
    /**
     * Threads cannot be started, or not so many.
     */
    MSDEFORM_STATUS_THREADS = 13,
    /**
     * The plan is computing another call.
     */
    MSDEFORM_STATUS_BUSY = 14,
    /**
     * A defect of the library. The plan of that call can only be destroyed.
     */
    MSDEFORM_STATUS_PANICKED = 15,
    /**
     * No GPU of this machine can be used, for want of a driver, of its compiler NVRTC or of a GPU that is new enough.
     */
    MSDEFORM_STATUS_CUDA_UNAVAILABLE = 32,
    /**
     * A kernel was not compiled or not loaded.
     */
    MSDEFORM_STATUS_CUDA_COMPILE = 33,
    /**
     * A pointer or a stream that is not one of the plan's device.
     */
    MSDEFORM_STATUS_CUDA_POINTER = 34,
    /**
     * The GPU has no memory left.
     */
    MSDEFORM_STATUS_CUDA_NO_MEMORY = 35,
    /**
     * The GPU has faulted, or the process was forked off one that used CUDA: it cannot use the GPU any more.
     */
    MSDEFORM_STATUS_CUDA_LOST = 36,
    /**
     * What else the CUDA driver refuses.
     */
    MSDEFORM_STATUS_CUDA_DRIVER = 37,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum msdeform_status msdeform_status;
#else
typedef int32_t msdeform_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How a tensor is stored. Arithmetic is 32-bit or better for every type.
 */
enum msdeform_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * For values f32; for the output, locations, weights, offsets and logits that of the values; for references that of the offsets.
     */
    MSDEFORM_DTYPE_DEFAULT = 0,
    /**
     * IEEE 754 single precision, a C `float`.
     */
    MSDEFORM_DTYPE_F32 = 1,
    /**
     * IEEE 754 half precision.
     */
    MSDEFORM_DTYPE_F16 = 2,
    /**
     * The upper half of an f32.
     */
    MSDEFORM_DTYPE_BF16 = 3,
    /**
     * IEEE 754 double precision, a C `double`. Computed by the plain reference, on one thread.
     */
    MSDEFORM_DTYPE_F64 = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum msdeform_dtype msdeform_dtype;
#else
typedef int32_t msdeform_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Memory order of the value tensor and of its gradient.
 */
enum msdeform_layout
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * [batch, spatial, heads, channels]: what the PyTorch ecosystem uses.
     */
    MSDEFORM_LAYOUT_INTERLEAVED = 0,
    /**
     * [batch, heads, spatial, channels].
     */
    MSDEFORM_LAYOUT_HEAD_MAJOR = 1,
    /**
     * The same with a border of one pixel around every level: a level of H x W takes (H + 2) * (W + 2) pixels. The
     * border must hold zeros; its gradient is zero.
     */
    MSDEFORM_LAYOUT_HEAD_MAJOR_PADDED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum msdeform_layout msdeform_layout;
#else
typedef int32_t msdeform_layout;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What an offset starts from.
 */
enum msdeform_reference_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * (x, y); offsets are pixels of their level.
     */
    MSDEFORM_REFERENCE_KIND_POINT = 0,
    /**
     * (x, y, width, height); offsets are parts of the box.
     */
    MSDEFORM_REFERENCE_KIND_BOX = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum msdeform_reference_kind msdeform_reference_kind;
#else
typedef int32_t msdeform_reference_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Which of a query's references a sample starts from.
 */
enum msdeform_reference_of
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * That of its level.
     */
    MSDEFORM_REFERENCE_OF_LEVEL = 0,
    /**
     * The only one.
     */
    MSDEFORM_REFERENCE_OF_QUERY = 1,
    /**
     * With Z anchors point p of a level starts from anchor p mod Z.
     */
    MSDEFORM_REFERENCE_OF_ANCHOR = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum msdeform_reference_of msdeform_reference_of;
#else
typedef int32_t msdeform_reference_of;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A tensor of a call.
 */
enum msdeform_role
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * [batch, spatial, heads, channels], or head-major.
     */
    MSDEFORM_ROLE_VALUE = 0,
    /**
     * [batch, queries, heads, samples, 2]: where samples are taken, (x, y) in [0, 1].
     */
    MSDEFORM_ROLE_SAMPLING_LOCATIONS = 1,
    /**
     * [batch, queries, heads, samples]: what each counts.
     */
    MSDEFORM_ROLE_ATTENTION_WEIGHTS = 2,
    /**
     * [batch, queries, references, 2 or 4]: what offsets start from.
     */
    MSDEFORM_ROLE_REFERENCE_POINTS = 3,
    /**
     * [batch, queries, heads, samples, 2]: how far from there samples are taken.
     */
    MSDEFORM_ROLE_SAMPLING_OFFSETS = 4,
    /**
     * [batch, queries, heads, samples]: what each counts, before the softmax.
     */
    MSDEFORM_ROLE_ATTENTION_LOGITS = 5,
    /**
     * [batch, queries, heads * channels].
     */
    MSDEFORM_ROLE_OUTPUT = 6,
    /**
     * The gradient of the output.
     */
    MSDEFORM_ROLE_GRAD_OUTPUT = 7,
    /**
     * The gradient of the values.
     */
    MSDEFORM_ROLE_GRAD_VALUE = 8,
    /**
     * The gradient of the locations.
     */
    MSDEFORM_ROLE_GRAD_SAMPLING_LOCATIONS = 9,
    /**
     * The gradient of the weights.
     */
    MSDEFORM_ROLE_GRAD_ATTENTION_WEIGHTS = 10,
    /**
     * The gradient of the references.
     */
    MSDEFORM_ROLE_GRAD_REFERENCE_POINTS = 11,
    /**
     * The gradient of the offsets.
     */
    MSDEFORM_ROLE_GRAD_SAMPLING_OFFSETS = 12,
    /**
     * The gradient of the logits.
     */
    MSDEFORM_ROLE_GRAD_ATTENTION_LOGITS = 13,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum msdeform_role msdeform_role;
#else
typedef int32_t msdeform_role;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * An instruction set.
 */
enum msdeform_isa
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The best one that this machine has.
     */
    MSDEFORM_ISA_BEST = 0,
    /**
     * Plain code, on every machine.
     */
    MSDEFORM_ISA_SCALAR = 1,
    /**
     * x86-64 with AVX2, FMA and F16C.
     */
    MSDEFORM_ISA_AVX2 = 2,
    /**
     * x86-64 with AVX-512 F, BW, DQ and VL.
     */
    MSDEFORM_ISA_AVX512 = 3,
    /**
     * 64-bit ARM.
     */
    MSDEFORM_ISA_NEON = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum msdeform_isa msdeform_isa;
#else
typedef int32_t msdeform_isa;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What a CUDA plan computes.
 */
enum msdeform_direction
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The output.
     */
    MSDEFORM_DIRECTION_FORWARD = 0,
    /**
     * Gradients.
     */
    MSDEFORM_DIRECTION_BACKWARD = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum msdeform_direction msdeform_direction;
#else
typedef int32_t msdeform_direction;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Which gradients a CUDA plan computes; add them up.
 */
enum msdeform_gradients
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * All that the problem has.
     */
    MSDEFORM_GRADIENTS_ALL = 0,
    /**
     * Of the values.
     */
    MSDEFORM_GRADIENTS_VALUE = 1,
    /**
     * Of the locations, or of the offsets.
     */
    MSDEFORM_GRADIENTS_LOCATIONS = 2,
    /**
     * Of the weights, or of the logits.
     */
    MSDEFORM_GRADIENTS_WEIGHTS = 4,
    /**
     * Of the references, in calls from offsets.
     */
    MSDEFORM_GRADIENTS_REFERENCES = 8,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum msdeform_gradients msdeform_gradients;
#else
typedef int32_t msdeform_gradients;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * When a CUDA plan asks the driver what its pointers lead to. Null and misaligned pointers are always found.
 */
enum msdeform_pointer_checks
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * On its first launch.
     */
    MSDEFORM_POINTER_CHECKS_FIRST = 0,
    /**
     * On every launch: about a microsecond for each tensor.
     */
    MSDEFORM_POINTER_CHECKS_EVERY = 1,
    /**
     * Never.
     */
    MSDEFORM_POINTER_CHECKS_NEVER = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum msdeform_pointer_checks msdeform_pointer_checks;
#else
typedef int32_t msdeform_pointer_checks;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Whose memory the steps of a launch share.
 */
enum msdeform_cuda_workspace
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The plan's own, allocated when it is made. Its launches must follow each other then: those on one stream do.
     */
    MSDEFORM_CUDA_WORKSPACE_PLAN = 0,
    /**
     * The caller's, given with every launch (`msdeform_tensors.workspace`). Launches on several streams need one each.
     */
    MSDEFORM_CUDA_WORKSPACE_CALLER = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum msdeform_cuda_workspace msdeform_cuda_workspace;
#else
typedef int32_t msdeform_cuda_workspace;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Everything that calls of one problem on the CPU share: tables, threads, scratch memory. One call at a time; a
 * second one meanwhile is refused with `MSDEFORM_STATUS_BUSY`. It may be used by another thread for every call.
 */
typedef struct msdeform_cpu_plan msdeform_cpu_plan;

/**
 * A GPU, ready to make plans: its context, its compiler, the kernels loaded so far. One for each device is enough; any
 * number of threads may use it at the same time, and it may be destroyed while plans made with it live on.
 */
typedef struct msdeform_cuda_engine msdeform_cuda_engine;

/**
 * A call in one direction on a GPU, ready to be launched any number of times on any stream of its device. Launching
 * allocates nothing, waits for nothing, and can be captured in a CUDA graph.
 */
typedef struct msdeform_cuda_plan msdeform_cuda_plan;

/**
 * A checked description of a call. It never changes: any number of threads may use one at the same time, and it may be
 * destroyed while plans made from it live on.
 */
typedef struct msdeform_problem msdeform_problem;

/**
 * Threads that several plans share: calls wait for each other, and idle plans keep no threads. Any number of threads may
 * use one at the same time. They end when it and the plans that use it are destroyed. They do not survive fork().
 */
typedef struct msdeform_workers msdeform_workers;

/**
 * How samples follow from offsets and logits, as a model's linear layers give them:
 *
 *   location[n, q, m, l, p] = centre(reference[n, q, r]) + offset[n, q, m, l, p] * s
 *   weight[n, q, m, l, p]   = softmax over all (l, p) of logit[n, q, m, l, p]
 *
 * with s = (1 / W, 1 / H) of the level for points, and (width, height) of the reference * offset_scale / P for boxes.
 *
 * Start from `msdeform_offsets_init`.
 */
typedef struct {
    /**
     * sizeof(msdeform_offsets).
     */
    size_t struct_size;
    /**
     * For `MSDEFORM_REFERENCE_OF_ANCHOR`: how many there are.
     */
    int64_t anchors;
    /**
     * One of `msdeform_reference_kind`.
     */
    int32_t kind;
    /**
     * One of `msdeform_reference_of`.
     */
    int32_t reference_of;
    /**
     * What an offset of one moves in a level of one point: a part of the box. Points have none. Initially 0.5.
     */
    float offset_scale;
    /**
     * 1: the logits are the weights, without a softmax.
     */
    int32_t raw_weights;
    /**
     * 1: the nearest pixel is taken, at the border the last one, instead of interpolating. Locations have no gradient then.
     */
    int32_t nearest;
    /**
     * Zero.
     */
    int32_t reserved;
} msdeform_offsets;

/**
 * What describes a call. Start from `msdeform_problem_description_init`: one image, head, channel and point, f32,
 * interleaved; queries and levels must be set. Sizes may be 0.
 */
typedef struct {
    /**
     * sizeof(msdeform_problem_description).
     */
    size_t struct_size;
    /**
     * Images, N.
     */
    int64_t batch;
    /**
     * Attention heads, M.
     */
    int64_t heads;
    /**
     * Channels of one head, D.
     */
    int64_t channels;
    /**
     * Queries of one image, Lq.
     */
    int64_t queries;
    /**
     * Levels of the pyramid, L.
     */
    int64_t level_count;
    /**
     * Height and width of each level: 2 * level_count numbers.
     */
    const int64_t *level_sizes;
    /**
     * First pixel of each level, level_count numbers; null if levels follow each other.
     */
    const int64_t *level_starts;
    /**
     * Pixels of the value tensor, S; 0 if the last level ends it.
     */
    int64_t spatial;
    /**
     * Points on every level, P; ignored if `points_per_level` is given.
     */
    int64_t points;
    /**
     * Points of each level, level_count numbers; null if all have `points`.
     */
    const int64_t *points_per_level;
    /**
     * Null: locations and weights are given. Otherwise the rule by which they follow from offsets and logits.
     */
    const msdeform_offsets *offsets;
    /**
     * Memory order of the values, one of `msdeform_layout`.
     */
    int32_t layout;
    /**
     * Storage of the values and their gradient, one of `msdeform_dtype`.
     */
    int32_t dtype;
    /**
     * Storage of locations and weights, or offsets and logits, and their gradients.
     */
    int32_t sampling_dtype;
    /**
     * Storage of references and their gradients.
     */
    int32_t reference_dtype;
    /**
     * Storage of the output and its gradient: that of the values, or f32.
     */
    int32_t output_dtype;
    /**
     * Zero.
     */
    int32_t reserved;
} msdeform_problem_description;

/**
 * Memory of the caller for the text of an error. Functions take null if the caller does not want the text.
 *
 * On success the text is empty. A text that does not fit is cut between two characters (it is UTF-8).
 */
typedef struct {
    /**
     * Where the text goes, with a zero at its end.
     */
    char *text;
    /**
     * Bytes there, the zero included.
     */
    size_t capacity;
    /**
     * Set by the function: bytes of the whole text, without the zero. It was cut if that is not less than `capacity`.
     */
    size_t length;
} msdeform_message;

/**
 * What there is to know about a tensor of a problem.
 */
typedef struct {
    /**
     * sizeof(msdeform_tensor_info).
     */
    size_t struct_size;
    /**
     * Bytes of the packed tensor.
     */
    size_t bytes;
    /**
     * Its elements.
     */
    size_t elements;
    /**
     * Its shape; 1 behind its last axis.
     */
    int64_t shape[5];
    /**
     * Its axes.
     */
    int32_t rank;
    /**
     * Its storage, one of `msdeform_dtype`.
     */
    int32_t dtype;
} msdeform_tensor_info;

/**
 * How a CPU plan runs. All zero, or null instead of it: one thread for each core, the best instructions.
 */
typedef struct {
    /**
     * sizeof(msdeform_cpu_options).
     */
    size_t struct_size;
    /**
     * Null: the plan has threads of its own. Otherwise those that do its work; `threads` is 0 then.
     */
    const msdeform_workers *workers;
    /**
     * Threads that share the work of a call. 0: as many as there are cores. 1: the calling one, and none is started.
     */
    int64_t threads;
    /**
     * One of `msdeform_isa`.
     */
    int32_t isa;
    /**
     * Zero.
     */
    int32_t reserved;
} msdeform_cpu_options;

/**
 * What there is to know about a CPU plan.
 */
typedef struct {
    /**
     * sizeof(msdeform_cpu_plan_info).
     */
    size_t struct_size;
    /**
     * Scratch memory that it holds now; it grows with the first calls and then stays.
     */
    size_t workspace_bytes;
    /**
     * Threads that share the work of a call.
     */
    int64_t threads;
    /**
     * One of `msdeform_isa`; for f64, which the reference computes, `MSDEFORM_ISA_SCALAR`.
     */
    int32_t isa;
    /**
     * Zero.
     */
    int32_t reserved;
} msdeform_cpu_plan_info;

/**
 * A tensor that is read.
 */
typedef struct {
    /**
     * Its first element: in host memory for a CPU plan, in device memory for a CUDA plan. Null: not given.
     */
    const void *data;
    /**
     * Bytes there: exactly those of a packed tensor; with strides at least as many as they reach.
     */
    size_t bytes;
    /**
     * Null: packed. Otherwise, on a CPU: elements from one image to the next and from one query to the next, for offsets
     * and logits; and from one reference to the next, for references. What lies behind those axes follows each other. Zeros
     * are legal: the same for all. Other tensors have none, nor have those of a CUDA plan, whose strides are options.
     */
    const int64_t *strides;
    /**
     * Numbers there: 2 for offsets and logits, 3 for references.
     */
    size_t stride_count;
} msdeform_input;

/**
 * A tensor that is written, packed.
 */
typedef struct {
    /**
     * Its first element. Null: not given; a gradient that is not given is not computed.
     */
    void *data;
    /**
     * Bytes there, at least those of the tensor. All of the tensor is written.
     */
    size_t bytes;
} msdeform_output;

/**
 * The tensors of a call. Set all of it to zero, then `struct_size` and those that the call has.
 *
 * | call | reads | writes |
 * |---|---|---|
 * | forward | value, sampling_locations, attention_weights | output |
 * | forward, from offsets | value, reference_points, sampling_offsets, attention_logits | output |
 * | backward | what the forward call reads, grad_output | any of the gradients of what it reads |
 *
 * Tensors of the other direction are left alone, so that one struct serves both. What is written must not lie over
 * anything else. A tensor without elements may be null.
 */
typedef struct {
    /**
     * sizeof(msdeform_tensors).
     */
    size_t struct_size;
    /**
     * [batch, spatial, heads, channels], or head-major.
     */
    msdeform_input value;
    /**
     * [batch, queries, heads, samples, 2].
     */
    msdeform_input sampling_locations;
    /**
     * [batch, queries, heads, samples].
     */
    msdeform_input attention_weights;
    /**
     * [batch, queries, references, 2 or 4].
     */
    msdeform_input reference_points;
    /**
     * [batch, queries, heads, samples, 2].
     */
    msdeform_input sampling_offsets;
    /**
     * [batch, queries, heads, samples].
     */
    msdeform_input attention_logits;
    /**
     * [batch, queries, heads * channels].
     */
    msdeform_input grad_output;
    /**
     * [batch, queries, heads * channels].
     */
    msdeform_output output;
    /**
     * Like value.
     */
    msdeform_output grad_value;
    /**
     * Like sampling_locations.
     */
    msdeform_output grad_sampling_locations;
    /**
     * Like attention_weights.
     */
    msdeform_output grad_attention_weights;
    /**
     * Like reference_points.
     */
    msdeform_output grad_reference_points;
    /**
     * Like sampling_offsets.
     */
    msdeform_output grad_sampling_offsets;
    /**
     * Like attention_logits.
     */
    msdeform_output grad_attention_logits;
    /**
     * For CUDA plans with `MSDEFORM_CUDA_WORKSPACE_CALLER`: device memory, see `msdeform_cuda_plan_get_info`.
     */
    msdeform_output workspace;
} msdeform_tensors;

/**
 * Threads of the caller that a call runs on, such as the pool of the runtime that calls.
 */
typedef struct {
    /**
     * sizeof(msdeform_threads).
     */
    size_t struct_size;
    /**
     * Threads that may share the work, from 1. More than there are cost next to nothing.
     */
    int64_t count;
    /**
     * Passed to `run`.
     */
    void *context;
    /**
     * Calls `work(job)` up to `count` times, on any threads at the same time, and returns when all of these calls have. The
     * calling thread takes part by itself. It must not let an exception out.
     */
    void (*run)(void *context,
                int64_t count,
                void (*work)(void *job),
                void *job);
} msdeform_threads;

/**
 * How a GPU is opened. All zero, or null instead of it: with the user's folders.
 */
typedef struct {
    /**
     * sizeof(msdeform_cuda_engine_options).
     */
    size_t struct_size;
    /**
     * The folder where compiled kernels are kept; null: what MSDEFORM_CACHE_DIR says, else the user's cache.
     */
    const char *cache_folder;
} msdeform_cuda_engine_options;

/**
 * How a CUDA plan runs. All zero, or null instead of it: forward, of a packed tensor, with the library's own choices.
 */
typedef struct {
    /**
     * sizeof(msdeform_cuda_plan_options).
     */
    size_t struct_size;
    /**
     * Null: values are packed. Otherwise elements from one image, head and pixel to the next: 3 numbers.
     */
    const int64_t *value_strides;
    /**
     * Null: grad_output is packed. Otherwise elements from one image, query, head and channel to the next: 4 numbers, which
     * may be zero.
     */
    const int64_t *grad_output_strides;
    /**
     * Null: the library chooses. Otherwise the variant to use, by its name; it computes the call or refuses it.
     */
    const char *variant;
    /**
     * One of `msdeform_direction`.
     */
    int32_t direction;
    /**
     * A sum of `msdeform_gradients`.
     */
    int32_t gradients;
    /**
     * 1: gradients are bitwise reproducible.
     */
    int32_t deterministic;
    /**
     * One of `msdeform_pointer_checks`.
     */
    int32_t pointer_checks;
    /**
     * One of `msdeform_cuda_workspace`.
     */
    int32_t workspace;
    /**
     * Width of the raster that the queries form, if they do: a hint. Otherwise 0.
     */
    uint32_t query_raster_width;
    /**
     * Null: reference_points are packed. Otherwise elements from one image and query to the next: 2 numbers, which may be
     * zero, for references that images or queries share. Only in calls from offsets, as the next two.
     */
    const int64_t *reference_strides;
    /**
     * As above, of sampling_offsets: the numbers of one query follow each other.
     */
    const int64_t *offset_strides;
    /**
     * As above, of attention_logits.
     */
    const int64_t *logit_strides;
} msdeform_cuda_plan_options;

/**
 * What there is to know about a CUDA plan.
 */
typedef struct {
    /**
     * sizeof(msdeform_cuda_plan_info).
     */
    size_t struct_size;
    /**
     * Bytes of the workspace that a launch needs, of the plan or of the caller.
     */
    size_t workspace_bytes;
    /**
     * Bytes of device memory that are the plan's own.
     */
    size_t own_bytes;
    /**
     * The variant that was chosen, with a zero at its end.
     */
    char variant[64];
} msdeform_cuda_plan_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the binary interface of the library. A program compiled with another `MSDEFORM_ABI_VERSION` must not
 * call anything else.
 *
 * Any thread, at any time.
 */
uint32_t msdeform_abi_version(void);

/**
 * The version of the library, such as "0.1.0". `MSDEFORM_VERSION` is that of the header. Never null, never freed.
 *
 * Any thread, at any time.
 */
const char *msdeform_version(void);

/**
 * The name of a code, such as "MSDEFORM_STATUS_BAD_LENGTH"; of an unknown one "unknown". Never null, never freed.
 *
 * Any thread, at any time.
 */
const char *msdeform_status_name(int32_t status);

/**
 * Sets every field of a description to what it is unless said; queries and level_count to -1, for they must be said.
 * `struct_size` is sizeof(msdeform_problem_description).
 *
 * Any thread.
 */
msdeform_status msdeform_problem_description_init(msdeform_problem_description *description,
                                                  size_t struct_size);

/**
 * Sets every field of a rule to what it is unless said: points, one for each level, with a softmax.
 * `struct_size` is sizeof(msdeform_offsets).
 *
 * Any thread.
 */
msdeform_status msdeform_offsets_init(msdeform_offsets *offsets,
                                      size_t struct_size);

/**
 * Checks a description and keeps what it says; neither it nor its lists are needed afterwards. The problem is
 * destroyed with `msdeform_problem_destroy`.
 *
 * Any thread.
 */
msdeform_status msdeform_problem_create(const msdeform_problem_description *description,
                                        msdeform_problem **problem,
                                        msdeform_message *message);

/**
 * Destroys a problem. Null is allowed.
 *
 * Any thread, once, after the last use in any other.
 */
void msdeform_problem_destroy(msdeform_problem *problem);

/**
 * Size, shape and storage of a tensor of the problem. `role` is one of `msdeform_role`; tensors that the problem has
 * not (locations where there are offsets, and the reverse) are refused. `info->struct_size` must be set.
 *
 * Any thread.
 */
msdeform_status msdeform_problem_tensor(const msdeform_problem *problem,
                                        int32_t role,
                                        msdeform_tensor_info *info,
                                        msdeform_message *message);

/**
 * The problem in a line, for logs: "N=2 M=8 D=32 Lq=300 (100x167 50x84) P=4 f16 interleaved". On success `text` holds
 * it, otherwise why not.
 *
 * Any thread.
 */
msdeform_status msdeform_problem_text(const msdeform_problem *problem,
                                      msdeform_message *text);

/**
 * Starts threads for several plans; 0 means one for each core. They are ended with `msdeform_workers_destroy`.
 *
 * Any thread.
 */
msdeform_status msdeform_workers_create(int64_t threads,
                                        msdeform_workers **workers,
                                        msdeform_message *message);

/**
 * Releases workers. Plans that use them keep them. Null is allowed.
 *
 * Any thread, once, after the last use in any other.
 */
void msdeform_workers_destroy(msdeform_workers *workers);

/**
 * Sets `available` to 1 if this machine has an instruction set (one of `msdeform_isa`), and to 0 if not.
 *
 * Any thread.
 */
msdeform_status msdeform_isa_available(int32_t isa,
                                       int32_t *available,
                                       msdeform_message *message);

/**
 * Prepares calls of a problem on the CPU. The plan is destroyed with `msdeform_cpu_plan_destroy`; neither problem
 * nor options are needed meanwhile.
 *
 * Any thread.
 */
msdeform_status msdeform_cpu_plan_create(const msdeform_problem *problem,
                                         const msdeform_cpu_options *options,
                                         msdeform_cpu_plan **plan,
                                         msdeform_message *message);

/**
 * Destroys a plan and its threads. Null is allowed.
 *
 * Any thread, once, after the last use in any other.
 */
void msdeform_cpu_plan_destroy(msdeform_cpu_plan *plan);

/**
 * What there is to know about a plan. `info->struct_size` must be set.
 *
 * Any thread, one at a time with the calls of the plan.
 */
msdeform_status msdeform_cpu_plan_get_info(const msdeform_cpu_plan *plan,
                                           msdeform_cpu_plan_info *info,
                                           msdeform_message *message);

/**
 * Computes the output, of locations and weights or from offsets as the problem says, and returns when it is there.
 *
 * Any thread, one call of a plan at a time.
 */
msdeform_status msdeform_cpu_forward(const msdeform_cpu_plan *plan,
                                     const msdeform_tensors *tensors,
                                     msdeform_message *message);

/**
 * As `msdeform_cpu_forward`, on threads of the caller: none of the plan's own and none of its workers take part. Small calls
 * stay on the calling thread. `threads->struct_size` must be set.
 *
 * Any thread, one call of a plan at a time.
 */
msdeform_status msdeform_cpu_forward_on(const msdeform_cpu_plan *plan,
                                        const msdeform_threads *threads,
                                        const msdeform_tensors *tensors,
                                        msdeform_message *message);

/**
 * Computes the gradients that are not null, and returns when they are written. They are bitwise reproducible for any number
 * of threads.
 *
 * Any thread, one call of a plan at a time.
 */
msdeform_status msdeform_cpu_backward(const msdeform_cpu_plan *plan,
                                      const msdeform_tensors *tensors,
                                      msdeform_message *message);

/**
 * Sets `count` to the number of GPUs that the CUDA driver sees. Without a driver `MSDEFORM_STATUS_CUDA_UNAVAILABLE`.
 *
 * Any thread.
 */
msdeform_status msdeform_cuda_device_count(size_t *count,
                                           msdeform_message *message);

/**
 * Opens GPU `device`, as CUDA_VISIBLE_DEVICES numbers them. It is closed with `msdeform_cuda_engine_destroy`; streams and
 * pointers are those of the device's primary context, which the CUDA runtime and PyTorch use.
 *
 * Any thread.
 */
msdeform_status msdeform_cuda_engine_create(int32_t device,
                                            const msdeform_cuda_engine_options *options,
                                            msdeform_cuda_engine **engine,
                                            msdeform_message *message);

/**
 * Closes a GPU. Plans that were made with it stay valid. Null is allowed.
 *
 * Any thread, once, after the last use in any other.
 */
void msdeform_cuda_engine_destroy(msdeform_cuda_engine *engine);

/**
 * Chooses, compiles and loads what a problem needs on a GPU, and allocates the plan's workspace. Kernels that were never
 * compiled take seconds, others microseconds. The plan is destroyed with `msdeform_cuda_plan_destroy`.
 *
 * Any thread.
 */
msdeform_status msdeform_cuda_plan_create(const msdeform_cuda_engine *engine,
                                          const msdeform_problem *problem,
                                          const msdeform_cuda_plan_options *options,
                                          msdeform_cuda_plan **plan,
                                          msdeform_message *message);

/**
 * Destroys a plan. Its workspace is freed when the kernels that use it are done. Null is allowed.
 *
 * Any thread, once, after the last use in any other.
 */
void msdeform_cuda_plan_destroy(msdeform_cuda_plan *plan);

/**
 * What there is to know about a plan. `info->struct_size` must be set.
 *
 * Any thread.
 */
msdeform_status msdeform_cuda_plan_get_info(const msdeform_cuda_plan *plan,
                                            msdeform_cuda_plan_info *info,
                                            msdeform_message *message);

/**
 * Queues a call on a stream (`CUstream` or `cudaStream_t`; null is the default stream) and returns at once. Tensors are in
 * device memory and must stay there until the stream is done with them.
 *
 * Any thread; with the workspace of the plan one launch at a time, with one of the caller any number.
 */
msdeform_status msdeform_cuda_launch(const msdeform_cuda_plan *plan,
                                     void *stream,
                                     const msdeform_tensors *tensors,
                                     msdeform_message *message);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MSDEFORM_H */
