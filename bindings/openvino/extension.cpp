// `MSDeformAttn` and `MSDeformAttnFromOffsets` of the domain `msdeform` for OpenVINO's CPU device, over
// libmsdeform.

#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <msdeform.h>

#include "openvino/core/extension.hpp"
#include "openvino/core/op_extension.hpp"
#include "openvino/core/parallel.hpp"
#include "openvino/frontend/onnx/extension/conversion.hpp"
#include "openvino/op/convert.hpp"
#include "openvino/op/op.hpp"

namespace {

using Numbers = std::vector<int64_t>;

// The inputs of a node are the value, sizes and starts of the levels, and what its samples are made of.
constexpr size_t SIZES = 1, STARTS = 2, FIRST_OF_SAMPLES = 3;

// Calls a function of the C library; its error becomes an exception with its text.
template <typename Function, typename... Arguments>
void must(Function function, Arguments... arguments) {
    char text[512];
    msdeform_message message = {text, sizeof text, 0};
    OPENVINO_ASSERT(function(arguments..., &message) == MSDEFORM_STATUS_OK, "msdeform: ", text);
}

void expect(const char* name, const ov::Shape& found, const ov::Shape& expected) {
    OPENVINO_ASSERT(found == expected, "msdeform: `", name, "` has shape ", found, ", expected ", expected);
}

int32_t dtype_of(const ov::Tensor& tensor) {
    const auto& type = tensor.get_element_type();
    if (type == ov::element::f32) return MSDEFORM_DTYPE_F32;
    if (type == ov::element::f16) return MSDEFORM_DTYPE_F16;
    if (type == ov::element::bf16) return MSDEFORM_DTYPE_BF16;
    OPENVINO_ASSERT(type == ov::element::f64, "msdeform: a tensor is ", type,
                    ", expected f32, f16, bf16 or f64");
    return MSDEFORM_DTYPE_F64;
}

// The CPU device narrows integers to 32 bits.
Numbers integers(const ov::Tensor& tensor) {
    if (tensor.get_element_type() == ov::element::i64) {
        const auto* first = tensor.data<const int64_t>();
        return {first, first + tensor.get_size()};
    }
    const auto* first = tensor.data<const int32_t>();
    return {first, first + tensor.get_size()};
}

struct Attributes {
    Numbers points;  // Of each level; empty if all levels have the same number.
    float offset_scale = 0.5f;
    int64_t anchors = 0, softmax = 1, nearest = 0;
};

// A call as numbers: calls with the same numbers share a plan.
Numbers key_of(bool fused, const Attributes& attributes, const ov::TensorVector& inputs) {
    int32_t scale;
    std::memcpy(&scale, &attributes.offset_scale, sizeof scale);
    Numbers key{fused, scale, attributes.anchors, attributes.softmax, attributes.nearest};
    const auto append = [&key](const auto& numbers) {
        key.push_back(numbers.size());
        key.insert(key.end(), numbers.begin(), numbers.end());
    };
    append(attributes.points);
    for (size_t index = 0; index < inputs.size(); ++index) {
        append(inputs[index].get_shape());
        if (index == SIZES || index == STARTS) {
            append(integers(inputs[index]));
        } else {
            key.push_back(dtype_of(inputs[index]));
        }
    }
    return key;
}

struct Destroy {
    void operator()(msdeform_problem* problem) const { msdeform_problem_destroy(problem); }
    void operator()(msdeform_cpu_plan* plan) const { msdeform_cpu_plan_destroy(plan); }
};
using Problem = std::unique_ptr<msdeform_problem, Destroy>;
using Plan = std::unique_ptr<msdeform_cpu_plan, Destroy>;

Plan make_plan(bool fused, const Attributes& attributes, const ov::TensorVector& inputs) {
    const auto& value = inputs[0].get_shape();
    const auto &positions = inputs[inputs.size() - 2].get_shape(), &shares = inputs.back().get_shape();
    OPENVINO_ASSERT(value.size() == 4, "msdeform: `value` has shape ", value,
                    ", expected [batch, pixels, heads, channels]");
    const auto sizes = integers(inputs[SIZES]), starts = integers(inputs[STARTS]);
    const size_t levels = sizes.size() / 2, batch = value[0], heads = value[2];
    expect("spatial_shapes", inputs[SIZES].get_shape(), {levels, 2});
    expect("level_start_index", inputs[STARTS].get_shape(), {levels});
    const char* name = fused ? "sampling_offsets" : "sampling_locations";
    OPENVINO_ASSERT(
        positions.size() == 5 || positions.size() == 6, "msdeform: `", name, "` has shape ", positions,
        ", expected [batch, queries, heads, levels, points, 2] or [batch, queries, heads, samples, 2]");
    const size_t queries = positions[1];
    OPENVINO_ASSERT(attributes.points.empty() || attributes.points.size() == levels,
                    "msdeform: `points` has ", attributes.points.size(), " entries for ", levels, " levels");
    ov::Shape samples{batch, queries, heads};
    size_t points = 0;
    if (positions.size() == 6) {
        points = positions[4];
        samples.insert(samples.end(), {levels, points});
    } else {
        samples.push_back(positions[3]);
        OPENVINO_ASSERT(!attributes.points.empty() || (levels ? positions[3] % levels : positions[3]) == 0,
                        "msdeform: `", name, "` has ", positions[3], " samples for ", levels,
                        " levels; the node needs the attribute `points`");
        points = levels ? positions[3] / levels : 0;
    }
    expect(fused ? "attention_logits" : "attention_weights", shares, samples);
    samples.push_back(2);
    expect(name, positions, samples);

    msdeform_problem_description description;
    msdeform_problem_description_init(&description, sizeof description);
    description.batch = batch;
    description.spatial = value[1];
    description.heads = heads;
    description.channels = value[3];
    description.queries = queries;
    description.level_count = levels;
    description.level_sizes = sizes.data();
    description.level_starts = starts.data();
    description.points = points;
    description.points_per_level = attributes.points.empty() ? nullptr : attributes.points.data();
    description.dtype = description.output_dtype = dtype_of(inputs[0]);
    description.sampling_dtype = dtype_of(inputs.back());
    msdeform_offsets rule;
    if (fused) {
        const auto& references = inputs[FIRST_OF_SAMPLES].get_shape();
        const auto fits = [&references](size_t axis, size_t size) {
            return references[axis] == 1 || references[axis] == size;
        };
        OPENVINO_ASSERT(
            references.size() == 4 && fits(0, batch) && fits(1, queries) &&
                (attributes.anchors || fits(2, levels)) && (references[3] == 2 || references[3] == 4),
            "msdeform: `reference_points` has shape ", references, ", expected [", batch, " or 1, ", queries,
            " or 1, ", attributes.anchors ? "anchors" : std::to_string(levels) + " or 1", ", 2 or 4]");
        msdeform_offsets_init(&rule, sizeof rule);
        rule.kind = references[3] == 4 ? MSDEFORM_REFERENCE_KIND_BOX : MSDEFORM_REFERENCE_KIND_POINT;
        rule.reference_of = attributes.anchors        ? MSDEFORM_REFERENCE_OF_ANCHOR
                            : references[2] == levels ? MSDEFORM_REFERENCE_OF_LEVEL
                                                      : MSDEFORM_REFERENCE_OF_QUERY;
        rule.anchors = attributes.anchors ? references[2] : 0;
        rule.offset_scale = attributes.offset_scale;
        rule.raw_weights = !attributes.softmax;
        rule.nearest = attributes.nearest != 0;
        description.offsets = &rule;
        description.reference_dtype = dtype_of(inputs[FIRST_OF_SAMPLES]);
    }
    msdeform_problem* problem = nullptr;
    must(msdeform_problem_create, &description, &problem);
    const Problem owner(problem);
    msdeform_cpu_options options{};
    options.struct_size = sizeof options;
    options.threads = 1;  // Calls run on OpenVINO's threads.
    msdeform_cpu_plan* plan = nullptr;
    must(msdeform_cpu_plan_create, problem, &options, &plan);
    return Plan(plan);
}

// Plans of all nodes: layers of a model have the same shapes and run one after the other. A run takes a plan
// out, so that nothing is locked while it computes.
class Plans {
public:
    template <typename Make, typename Run>
    void with(Numbers key, Make make, Run run) {
        std::list<Entry> mine;
        {
            const std::lock_guard<std::mutex> guard(lock);
            for (auto entry = entries.begin(); entry != entries.end() && mine.empty(); ++entry) {
                if (entry->first == key) {
                    mine.splice(mine.begin(), entries, entry);
                    break;
                }
            }
        }
        if (mine.empty()) {
            mine.emplace_back(std::move(key), make());
        }
        run(mine.front().second.get());
        const std::lock_guard<std::mutex> guard(lock);
        entries.splice(entries.begin(), mine);
        if (entries.size() > MOST) {
            entries.pop_back();
        }
    }

private:
    using Entry = std::pair<Numbers, Plan>;
    static constexpr size_t MOST = 32;
    std::mutex lock;
    std::list<Entry> entries;  // The last used ones first.
};

void on_openvinos_threads(void*, int64_t count, void (*work)(void*), void* job) {
    ov::parallel_nt(static_cast<int>(count), [=](int, int) { work(job); });
}

template <bool FUSED>
class Attention : public ov::op::Op {
public:
    static const ov::DiscreteTypeInfo& get_type_info_static() {
        static const char* name = FUSED ? "MSDeformAttnFromOffsets" : "MSDeformAttn";
        static const ov::DiscreteTypeInfo info = [] {
            ov::DiscreteTypeInfo made{name, "extension", &ov::op::Op::get_type_info_static()};
            made.hash();
            return made;
        }();
        return info;
    }
    const ov::DiscreteTypeInfo& get_type_info() const override { return get_type_info_static(); }
    using ov::op::Op::evaluate;

    Attention() = default;
    Attention(const ov::OutputVector& inputs, Attributes attributes)
        : Op(inputs), attributes(std::move(attributes)) {
        constructor_validate_and_infer_types();
    }

    void validate_and_infer_types() override {
        const size_t expected = FUSED ? 6 : 5;
        NODE_VALIDATION_CHECK(this, get_input_size() == expected, "the node has ", get_input_size(),
                              " inputs, expected ", expected);
        const auto &value = get_input_partial_shape(0), &positions = get_input_partial_shape(expected - 2);
        NODE_VALIDATION_CHECK(this, value.rank().compatible(4), "`value` has shape ", value,
                              ", expected 4 axes");
        NODE_VALIDATION_CHECK(this, positions.rank().compatible(5) || positions.rank().compatible(6), "`",
                              FUSED ? "sampling_offsets" : "sampling_locations", "` has shape ", positions,
                              ", expected 5 or 6 axes");
        const bool known = value.rank().is_static();
        set_output_type(0, get_input_element_type(0),
                        {known ? value[0] : ov::Dimension(),
                         positions.rank().is_static() ? positions[1] : ov::Dimension(),
                         known ? value[2] * value[3] : ov::Dimension()});
    }

    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
        return std::make_shared<Attention>(inputs, attributes);
    }

    bool visit_attributes(ov::AttributeVisitor& visitor) override {
        visitor.on_attribute("points", attributes.points);
        if (FUSED) {
            visitor.on_attribute("offset_scale", attributes.offset_scale);
            visitor.on_attribute("anchors", attributes.anchors);
            visitor.on_attribute("softmax", attributes.softmax);
            visitor.on_attribute("nearest", attributes.nearest);
        }
        return true;
    }

    bool has_evaluate() const override { return true; }

    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
        static Plans& plans =
            *new Plans;  // Never destroyed: threads of other libraries may outlive this one's statics.
        const auto make = [&] { return make_plan(FUSED, attributes, inputs); };
        plans.with(key_of(FUSED, attributes, inputs), make,
                   [&](const msdeform_cpu_plan* plan) { compute(plan, outputs[0], inputs); });
        return true;
    }

private:
    static void compute(const msdeform_cpu_plan* plan, ov::Tensor& output, const ov::TensorVector& inputs) {
        const auto& value = inputs[0].get_shape();
        const size_t batch = value[0], queries = inputs.back().get_shape()[1];
        output.set_shape({batch, queries, value[2] * value[3]});
        const auto reads = [&inputs](size_t index) {
            return msdeform_input{inputs[index].data(), inputs[index].get_byte_size(), nullptr, 0};
        };
        msdeform_tensors tensors{};
        tensors.struct_size = sizeof tensors;
        tensors.value = reads(0);
        int64_t strides[3];
        if (FUSED) {
            tensors.reference_points = reads(FIRST_OF_SAMPLES);
            const auto& shape = inputs[FIRST_OF_SAMPLES].get_shape();
            const int64_t row = shape[2] * shape[3];
            // References of one image or query are those of all.
            strides[0] = shape[0] == 1 ? 0 : row * shape[1];
            strides[1] = shape[1] == 1 ? 0 : row;
            strides[2] = shape[3];
            tensors.reference_points.strides = strides;
            tensors.reference_points.stride_count = 3;
            tensors.sampling_offsets = reads(FIRST_OF_SAMPLES + 1);
            tensors.attention_logits = reads(FIRST_OF_SAMPLES + 2);
        } else {
            tensors.sampling_locations = reads(FIRST_OF_SAMPLES);
            tensors.attention_weights = reads(FIRST_OF_SAMPLES + 1);
        }
        tensors.output = {output.data(), output.get_byte_size()};
        const msdeform_threads threads{sizeof threads, parallel_get_max_threads(), nullptr,
                                       on_openvinos_threads};
        must(msdeform_cpu_forward_on, plan, &threads, &tensors);
    }

    Attributes attributes;
};

// A node of an ONNX file.
template <bool FUSED>
ov::OutputVector converted(const ov::frontend::NodeContext& node) {
    ov::OutputVector inputs;
    for (size_t index = 0; index < node.get_input_size(); ++index) {
        inputs.push_back(node.get_input(static_cast<int>(index)));
    }
    const Attributes unless_given;
    Attributes attributes;
    attributes.points = node.get_attribute<Numbers>("points", {});
    if (FUSED) {
        attributes.offset_scale = node.get_attribute<float>("offset_scale", unless_given.offset_scale);
        attributes.anchors = node.get_attribute<int64_t>("anchors", unless_given.anchors);
        attributes.softmax = node.get_attribute<int64_t>("softmax", unless_given.softmax);
        attributes.nearest = node.get_attribute<int64_t>("nearest", unless_given.nearest);
    }
    // The library takes samples in the dtype of the value, or all of them in f32.
    bool widen = false;
    for (size_t index = FIRST_OF_SAMPLES; index < inputs.size(); ++index) {
        widen = widen || inputs[index].get_element_type() != inputs[0].get_element_type();
    }
    for (size_t index = FIRST_OF_SAMPLES; widen && index < inputs.size(); ++index) {
        inputs[index] = std::make_shared<ov::op::v0::Convert>(inputs[index], ov::element::f32);
    }
    return std::make_shared<Attention<FUSED>>(inputs, attributes)->outputs();
}

template <bool FUSED>
ov::Extension::Ptr in_onnx() {
    const char* name = Attention<FUSED>::get_type_info_static().name;
    return std::make_shared<ov::frontend::onnx::ConversionExtension>(name, "msdeform", converted<FUSED>);
}

}  // namespace

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>(
    {std::make_shared<ov::OpExtension<Attention<false>>>(),
     std::make_shared<ov::OpExtension<Attention<true>>>(), in_onnx<false>(), in_onnx<true>()}));
