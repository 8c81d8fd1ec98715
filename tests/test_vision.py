"""Vision towers and connectors: their rows against the reference and transformers, on any processor."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import families
import gemma4_towers
import numpy as np
import pytest
import reference_vision
import towers
from processes import KILLED_CONVERSION
from safetensors.numpy import load_file, save_file

import tinychat
from tinychat.conversion.pipeline import Recipe, disk_needed
from tinychat.engine.sequence import new_sequence
from tinychat.errors import CheckpointError, ConversionError, ModelFolderError, SettingError, UnsupportedModelError
from tinychat.images.connector import Connector, joined_squares
from tinychat.images.encoder import ImageEncoder
from tinychat.images.image import Image
from tinychat.images.positions import grid_positions
from tinychat.images.preparation import prepare
from tinychat.kernels.setup import INSTRUCTION_SET, host_instruction_sets
from tinychat.models.architectures import find_family, parse_config, supported_families
from tinychat.models.folder import model_fingerprint, open_model_folder
from tinychat.models.seeing.parts import ConnectorLinear, ConnectorParts
from tinychat.models.vision import VISION_FOLDER, read_vision, sees
from tinychat.store.local import code_lines

TESTS = Path(__file__).parent
# Root of the mean square of errors, in standard deviations of rows, by the quantization of the text model.
TOLERANCES = {"f32": 2e-5, "int8": 0.03, "int4": 0.03}
each_seeing = pytest.mark.parametrize("seeing", towers.SEEING, ids=lambda seeing: seeing.name)
ODD, WIDE, ROTATED, STACKED, MEANS, CLIPPED, PIXTRAL, LLAVA = (
    towers.BY_NAME[name]
    for name in ("odd", "wide", "rotated", "stacked", "means", "clipped", "pixtral", "pixtral-llava")
)


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory):
    """Return the model folder of a checkpoint of `towers`."""
    root, found = tmp_path_factory.mktemp("seeing"), {}

    def folder_of(seeing, quant):
        if (seeing.name, quant) not in found:
            checkpoint = towers.write_checkpoint(seeing, root / f"{seeing.name}-{quant}-checkpoint")
            found[seeing.name, quant] = tinychat.convert(checkpoint, root / f"{seeing.name}-{quant}", quant=quant)
        return found[seeing.name, quant]

    return folder_of


def expected_rows(seeing, tile):
    tensors, size = towers.connector_tensors(seeing), seeing.scale_factor
    own, eps = towers.tower_tensors(seeing), seeing.text.config.get("rms_norm_eps", 1e-5)
    if seeing.is_gemma4:
        states = gemma4_towers.states(own, seeing.section, tile, seeing.grid)
        return gemma4_towers.rows(own, tensors["embedding_projection.weight"], states, seeing.grid, size)
    states, *others = reference_vision.tower_states(own, seeing.run_section, tile, seeing.grid)
    found = [reference_vision.connector_rows(tensors, states, seeing.grid, size, eps)]
    for layer, each in zip(sorted(seeing.stacked), others, strict=True):
        own = towers.stacked_tensors(seeing, seeing.stacked.index(layer))
        found.append(reference_vision.connector_rows(own, each, seeing.grid, size))
    return np.concatenate(found, axis=1)


def error_of(found, expected):
    """Return the error of rows in their standard deviations, of which the largest is a few times as large."""
    assert (found.shape, found.dtype) == (expected.shape, np.float32)
    error = np.sqrt(np.mean(np.square(found - expected))) / expected.std()
    assert np.abs(found - expected).max() < 8 * error * expected.std()
    return error


# Beside a text model of four bits, a tower is the same as beside one of eight.
ROWS_OF = [(seeing, quant) for seeing in towers.SEEING for quant in ("f32", "int8")] + [(ODD, "int4")]


@pytest.mark.parametrize(("seeing", "quant"), ROWS_OF, ids=lambda each: each if isinstance(each, str) else each.name)
def test_rows_equal_the_reference(seeing, quant, model_folders):
    encoder, tile = ImageEncoder(model_folders(seeing, quant), threads=1), towers.tile_of(seeing)
    expected = expected_rows(seeing, tile)
    found = encoder.rows(tile, seeing.grid)
    assert expected.shape == (seeing.tokens, encoder.vision.row_size)
    assert error_of(found, expected) < TOLERANCES[quant]
    # Nothing is left of a tile.
    encoder.rows(towers.tile_of(seeing, seed=10), seeing.grid)
    assert encoder.rows(tile, seeing.grid).tobytes() == found.tobytes()


@pytest.mark.parametrize("seeing", [ODD, WIDE, ROTATED, STACKED, CLIPPED, PIXTRAL], ids=lambda seeing: seeing.name)
def test_any_number_of_threads_computes_the_same_bits(seeing, model_folders):
    folder, tile = model_folders(seeing, "int8"), towers.tile_of(seeing)
    one, two = (ImageEncoder(folder, threads=threads).rows(tile, seeing.grid).tobytes() for threads in (1, 2))
    assert one == two


ROWS = """
import sys
from pathlib import Path
import towers
from tinychat.images.encoder import ImageEncoder
from tinychat.images.image import Image
from tinychat.images.preparation import prepare
for folder, name in zip(sys.argv[1::2], sys.argv[2::2]):
    seeing = towers.BY_NAME[name]
    rows = ImageEncoder(Path(folder), threads=1).rows(towers.tile_of(seeing), seeing.grid)
    sys.stdout.write(rows.tobytes().hex())
"""


@pytest.mark.slow
@pytest.mark.parametrize("isa", [isa for isa in host_instruction_sets() if isa != INSTRUCTION_SET])
def test_any_instruction_set_computes_the_same_bits(isa, model_folders):
    cases = [(model_folders(seeing, "int8"), seeing) for seeing in towers.SEEING]
    cases += [(model_folders(seeing, "f32"), seeing) for seeing in (ODD, WIDE, ROTATED, PIXTRAL)]
    expected = [
        ImageEncoder(folder, threads=1).rows(towers.tile_of(seeing), seeing.grid).tobytes() for folder, seeing in cases
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = kept | {"TINYCHAT_ISA": isa, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    command = [sys.executable, "-c", ROWS, *(str(part) for folder, seeing in cases for part in (folder, seeing.name))]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=True)
    assert found.stdout == b"".join(expected).hex()


def test_sums_of_a_connector_have_the_same_bits_in_any_order(rng):
    weight, states = rng.standard_normal((300, 4 * 1024)), 30 * rng.standard_normal((36, 1024))
    weight[7], states[5:7] = 0, 0
    order = rng.permutation(1024)
    turned = weight.reshape(300, 4, 1024)[:, :, order].reshape(300, -1)
    parts = ConnectorParts("", 2, (ConnectorLinear("proj", 300, 4096),))
    found = Connector(parts, {"proj.weight": weight}).rows(states, (2, 18))
    assert found.tobytes() == Connector(parts, {"proj.weight": turned}).rows(states[:, order], (2, 18)).tobytes()
    expected = reference_vision.connector_rows({"proj.weight": weight}, states, (2, 18), 2)
    assert error_of(found, expected) < 2e-5
    assert not found[:, 7].any()


def test_squares_of_patches_are_joined_row_by_row():
    joined = joined_squares(np.arange(16.0)[:, None], (4, 4), 2)
    assert joined.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    joined = joined_squares(np.arange(12.0)[:, None], (2, 6), 2)
    assert joined.tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]


@pytest.mark.parametrize("from_corners", [False, True])
@pytest.mark.parametrize("grid", [(7, 7), (1, 1), (5, 16), (16, 3), (9, 64)])
def test_positions_are_fitted_to_any_grid(grid, from_corners, rng):
    learned = rng.standard_normal((49, 24)).astype(np.float32)
    found = grid_positions(learned, grid, from_corners=from_corners)
    expected = reference_vision.fitted_positions(learned.astype(np.float64), grid, from_corners)
    assert found.dtype == np.float32
    # Places between corners are rounded to float32.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * (1 + from_corners))
    if grid == (7, 7):
        assert found.tobytes() == learned.tobytes()


@pytest.mark.live
@pytest.mark.parametrize("grid", [(5, 16), (16, 3), (9, 64)])
def test_positions_are_those_of_torch(grid, rng):
    torch = pytest.importorskip("torch")
    learned = rng.standard_normal((49, 24)).astype(np.float32)
    square = torch.from_numpy(learned.reshape(1, 7, 7, 24)).permute(0, 3, 1, 2)
    expected = torch.nn.functional.interpolate(square, grid, mode="bilinear", antialias=True)
    expected = expected[0].permute(1, 2, 0).reshape(-1, 24).numpy()
    np.testing.assert_allclose(grid_positions(learned, grid), expected, rtol=0, atol=2e-6)


@pytest.mark.live
@pytest.mark.parametrize("grid", [(1, 1), (2, 34), (16, 3), (9, 64), (48, 48), (90, 91)])
def test_positions_from_corners_are_those_of_transformers(grid, rng):
    torch, utils = pytest.importorskip("torch"), pytest.importorskip("transformers.vision_utils")
    learned = rng.standard_normal((48 * 48, 24)).astype(np.float32)
    indices, weights = utils.get_vision_interpolation_indices_and_weights(
        torch.tensor([[1, *grid]]), 48, "bilinear", True
    )
    expected = (torch.from_numpy(learned)[indices] * weights[:, :, None]).sum(1).numpy()
    np.testing.assert_allclose(grid_positions(learned, grid, from_corners=True), expected, rtol=0, atol=1e-6)


def test_text_alone_is_what_it_was(model_folders, tmp_path):
    folder = model_folders(ODD, "int8")
    checkpoint = towers.write_checkpoint(ODD, tmp_path / "checkpoint")
    (checkpoint / "preprocessor_config.json").unlink()
    alone = tinychat.convert(checkpoint, tmp_path / "alone", quant="int8")
    assert (read_vision(alone), sees(alone), sees(folder)) == (None, False, True)
    assert (alone / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert code_lines(alone) == [
        "text only: what SmolVLMForConditionalGeneration has for images and sound is passed over"
    ]
    assert code_lines(folder) == ["sees images: vision/ has the vision tower of SmolVLMForConditionalGeneration"]
    with pytest.raises(ModelFolderError, match="has no vision tower: convert the model again"):
        ImageEncoder(alone)


def test_a_model_folder_has_the_tower_as_a_folder_of_its_own(model_folders):
    for quant, dtype in (("int4", "int8"), ("int8", "int8"), ("f32", "f32")):
        folder = model_folders(ODD, quant)
        opened = open_model_folder(folder / VISION_FOLDER)
        assert (opened.quantization.dtype, opened.config.patch_columns, opened.config.writes) == (dtype, 108, False)
        assert (opened.config.max_position_embeddings, opened.config.bidirectional) == (36, True)
        assert (folder / "preprocessor_config.json").is_file()
    assert json.loads((folder / VISION_FOLDER / "tinychat.json").read_text())["relative_rms_error"] == {}
    fingerprint = model_fingerprint(folder)
    assert len(fingerprint) == 64


def test_a_tower_is_no_model_of_its_own():
    assert find_family("SiglipVisionTower") is not None
    assert "SiglipVisionTower" not in supported_families()
    with pytest.raises(UnsupportedModelError, match="architecture 'SiglipVisionModel' is not supported"):
        parse_config({"architectures": ["SiglipVisionModel"], "model_type": "siglip_vision_model"}, "config.json")


def test_images_that_are_prepared_in_an_unknown_way_leave_the_text_model(tmp_path):
    checkpoint = towers.write_checkpoint(ODD, tmp_path / "checkpoint")
    path = checkpoint / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"image_processor_type": "CLIPImageProcessor"}))
    made = tinychat.convert(checkpoint, tmp_path / "model", quant="int8")
    assert not (made / VISION_FOLDER).exists() and not tinychat.load(made).sees_images
    assert code_lines(made)[0] == f"text only: what {ODD.wrapper} has for images and sound is passed over"


def test_progress_and_space_count_what_images_need(tmp_path):
    checkpoint, seen = towers.write_checkpoint(ODD, tmp_path / "checkpoint"), []
    made = tinychat.convert(checkpoint, tmp_path / "model", quant="int8", progress=lambda *done: seen.append(done))
    assert seen == sorted(seen)
    assert (seen[-1], {total for _, total in seen}) == ((1000, 1000), {1000})
    size = sum(file.stat().st_size for file in made.rglob("*.safetensors"))
    # Headers and text files are not counted.
    assert 0 <= size - disk_needed(checkpoint, Recipe("int8", algorithm="plain")) < 30_000


@pytest.mark.parametrize(
    ("seeing", "name"),
    [(ODD, "vision_model.embeddings.patch_embedding"), (ROTATED, "visual.patch_embed.proj")],
    ids=["image", "frames"],
)
def test_patches_in_the_order_of_mlx(seeing, name, model_folders, tmp_path):
    checkpoint = towers.write_checkpoint(seeing, tmp_path / "checkpoint")
    tensors, name = load_file(checkpoint / "model.safetensors"), f"model.{name}.weight"
    tensors[name] = np.ascontiguousarray(np.moveaxis(tensors[name], 1, -1))
    save_file(tensors, checkpoint / "model.safetensors")
    made = tinychat.convert(checkpoint, tmp_path / "model", quant="int8") / VISION_FOLDER / "model.safetensors"
    assert made.read_bytes() == (model_folders(seeing, "int8") / VISION_FOLDER / "model.safetensors").read_bytes()


def test_names_of_older_files_of_qwen(model_folders, tmp_path):
    checkpoint = towers.write_checkpoint(ROTATED, tmp_path / "checkpoint")
    tensors = load_file(checkpoint / "model.safetensors")
    save_file(
        {name.replace("model.visual.", "visual."): each for name, each in tensors.items()},
        checkpoint / "model.safetensors",
    )
    made = tinychat.convert(checkpoint, tmp_path / "model", quant="int8")
    expected = model_folders(ROTATED, "int8")
    for file in (f"{VISION_FOLDER}/model.safetensors", f"{VISION_FOLDER}/connector.safetensors"):
        assert (made / file).read_bytes() == (expected / file).read_bytes()


KILLED = f'{KILLED_CONVERSION}convert.convert(sys.argv[1], sys.argv[2], "int8")'


def test_a_conversion_that_was_killed_in_the_tower_goes_on(tmp_path, monkeypatch):
    from tinychat.conversion import convert, unfinished

    checkpoint = towers.write_checkpoint(ODD, tmp_path / "checkpoint")
    expected, target, written = convert.convert(checkpoint, tmp_path / "whole", "int8"), tmp_path / "model", []
    write = unfinished.JournaledWriter.write_parts
    monkeypatch.setattr(
        unfinished.JournaledWriter, "write_parts", lambda self, *part: (written.append(part[:2]), write(self, *part))
    )
    convert.convert(checkpoint, tmp_path / "counted", "int8")
    steps = len(written)
    command = [sys.executable, "-c", KILLED, str(checkpoint), str(target), str(steps - 4)]
    assert subprocess.run(command, timeout=120, check=False).returncode == -signal.SIGKILL
    written.clear()
    convert.convert(checkpoint, target, "int8")
    assert len(written) == 4
    for file in (each for each in expected.rglob("*") if each.is_file()):
        assert (target / file.relative_to(expected)).read_bytes() == file.read_bytes()


def vision_of(folder, raw, seeing=ODD, **processor):
    """Write the configurations of a model, and return what is read of them."""
    text = {"model_type": seeing.text.config["model_type"], "hidden_size": 576}
    raw = {"architectures": [seeing.wrapper], "text_config": text, "image_token_id": 300, **raw}
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "preprocessor_config.json").write_text(json.dumps(towers.processor(seeing) | processor))
    return read_vision(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale_factor": 4}, "scale_factor is 4; expected a divisor of the 6 patches of a row"),
        ({"scale_factor": "3"}, "scale_factor is '3'; expected an integer from 1 to 6"),
        ({"vision_config": []}, "vision_config is \\[\\]; expected an object"),
        ({"image_token_id": -1}, "image_token_id is -1; expected an integer from 0"),
        ({"patch_size": 0}, "vision_config: patch_size is 0; expected an integer from 1 to 1024"),
        ({"image_size": [36, 36]}, "vision_config: image_size is \\[36, 36\\]; expected an integer"),
        ({"image_size": 5}, "vision_config: image_size is 5; expected an integer from 6"),
        ({"image_size": 54}, "vision_config: image_size is 54; expected that of the tiles that images are prepared as"),
        ({"num_channels": 1}, "vision_config: num_channels is 1; expected an integer from 3 to 3"),
        ({"hidden_size": 1 << 17}, "scale_factor is 3; expected .* squares have 65536 numbers in all"),
    ],
)
def test_values_that_are_refused(change, message, tmp_path):
    outside = change.keys() & {"scale_factor", "vision_config", "image_token_id"}
    raw = {"scale_factor": 3, "vision_config": ODD.section | ({} if outside else change)}
    with pytest.raises(CheckpointError, match=message):
        vision_of(tmp_path, raw | (change if outside else {}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"downsample_factor": 0}, "downsample_factor is 0; expected an integer from 1 to 64"),
        ({"downsample_factor": 3}, "preprocessor_config.json: downsample_factor is 2; expected the model's 3"),
        ({"downsample_factor": 64}, "downsample_factor is 64; expected squares of patches with 65536 numbers in all"),
        ({"projector_hidden_size": 0}, "projector_hidden_size is 0; expected an integer from 1 to 65536"),
        ({"projector_bias": 1}, "projector_bias is 1; expected true or false"),
        ({"projector_hidden_act": "silu"}, "projector_hidden_act 'silu' is not supported"),
        ({"vision_feature_layer": -2}, "vision_feature_layer -2 is not supported"),
        ({"image_token_id": None, "image_token_index": "x"}, "image_token_id is 'x'; expected an integer from 0"),
    ],
)
def test_values_of_lfm2_vl_that_are_refused(change, message, tmp_path):
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        vision_of(tmp_path, {"vision_config": WIDE.section, **WIDE.projector, **change}, WIDE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spatial_merge_size": 7}, "spatial_merge_size is 7; expected an integer from 1 to 6"),
        ({"spatial_merge_size": 3}, "preprocessor_config.json: merge_size is 2; expected the model's 3"),
        ({"patch_size": 8}, "preprocessor_config.json: patch_size is 6; expected the model's 8"),
        ({"out_hidden_size": 1024}, "vision_config: out_hidden_size is 1024; expected the 576 numbers of a row"),
        ({"out_hidden_size": None}, "vision_config: out_hidden_size is missing; expected the 576 numbers of a row"),
        ({"hidden_size": 1 << 15}, "hidden_size is 32768; expected squares of 4 patches with 65536 numbers in all"),
        ({"in_channels": 1}, "vision_config: in_channels is 1; expected an integer from 3 to 3"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_parameters: rope_theta is 'x'; expected a number from"),
    ],
)
def test_values_of_qwen_that_are_refused(change, message, tmp_path):
    section = ROTATED.section | {"out_hidden_size": 576} | change
    with pytest.raises(CheckpointError, match=message):
        vision_of(tmp_path, {"vision_config": section}, ROTATED)


@pytest.mark.parametrize("layers", [3, [0, 3], [-1], ["0"], [True], [1, 1]], ids=str)
def test_layers_of_qwen3_vl_that_are_refused(layers, tmp_path):
    section = STACKED.section | {"out_hidden_size": 576, "deepstack_visual_indexes": layers}
    with pytest.raises(CheckpointError, match="expected a list of layers from 0 to 2"):
        vision_of(tmp_path, {"vision_config": section}, STACKED)


def test_what_published_files_of_qwen_leave_out(tmp_path):
    section = {"hidden_size": 768, "num_heads": 12, "depth": 12, "intermediate_size": 3072, "out_hidden_size": 576}
    vision = vision_of(
        tmp_path,
        {"vision_config": section},
        ROTATED,
        patch_size=16,
        size={"shortest_edge": 65536, "longest_edge": 1 << 24},
    )
    assert (vision.image_token_id, vision.scale_factor, vision.text_size) == (300, 2, 576)
    assert vision.connector.shapes == {
        "linear_fc1.weight": (3072, 3072),
        "linear_fc1.bias": (3072,),
        "linear_fc2.weight": (576, 3072),
        "linear_fc2.bias": (576,),
    }
    config = parse_config(vision.tower, "config.json")
    assert (config.position_grid, config.position_corners, config.patch_columns) == (48, True, 768)
    assert (config.max_position_embeddings, config.rope_theta, config.rotary_dims) == (8192, 10000.0, (64,) * 12)
    assert (config.hidden_act, config.rms_norm_eps, config.attention_scale) == ("gelu_tanh", 1e-6, 1 / 8)
    other = vision_of(
        tmp_path,
        {"vision_config": section | {"rope_parameters": {"rope_theta": 5000, "rope_type": "axial"}}},
        ROTATED,
        patch_size=16,
    )
    assert other.tower["rope_theta"] == 5000
    with pytest.raises(CheckpointError, match="hidden_size is 768; expected a multiple of 512, four for each head"):
        parse_config({**vision.tower, "num_heads": 128}, "config.json")
    with pytest.raises(CheckpointError, match="num_position_embeddings is 250; expected that of a square grid"):
        parse_config({**vision.tower, "num_position_embeddings": 250}, "config.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spatial_merge_size": 7}, "spatial_merge_size is 7; expected an integer from 1 to 6"),
        ({"spatial_merge_size": None}, "spatial_merge_size is missing; expected an integer from 1 to 6"),
        ({"vision_feature_layer": 0}, "vision_feature_layer is 0; expected a layer behind the first"),
        ({"vision_feature_layer": -3}, "vision_feature_layer is -3; expected an integer from -2 to 2"),
        ({"vision_feature_layer": [-1]}, "vision_feature_layer \\[-1\\] is not supported"),
        ({"projector_hidden_act": "silu"}, "projector_hidden_act 'silu' is not supported"),
        ({"multimodal_projector_bias": 1}, "multimodal_projector_bias is 1; expected true or false"),
        ({"image_token_index": "x"}, "image_token_id is 'x'; expected an integer from 0"),
        ({"model_type": "clip_vision_model"}, "vision_config: model_type 'clip_vision_model' is not supported"),
        ({"hidden_size": 1 << 15}, "vision_config: hidden_size is 32768; expected an integer from 1 to 16384"),
        ({"num_hidden_layers": 0}, "vision_config: num_hidden_layers is 0; expected an integer from 1"),
        ({"num_channels": 1}, "vision_config: num_channels is 1; expected an integer from 3 to 3"),
        ({"patch_size": [6, 6]}, "vision_config: patch_size is \\[6, 6\\]; expected an integer"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_parameters: rope_theta is 'x'; expected a number from"),
        ({"rope_parameters": None, "rope_theta": 0}, "vision_config: rope_theta is 0; expected a number from"),
    ],
)
def test_values_of_mistral_that_are_refused(change, message, tmp_path):
    outside = {"spatial_merge_size", "vision_feature_layer", "projector_hidden_act", "image_token_index"}
    is_outside = bool(change.keys() & {*outside, "multimodal_projector_bias"})
    raw = {"vision_config": PIXTRAL.section | ({} if is_outside else change), **OF_MISTRAL}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        vision_of(tmp_path, raw | (change if is_outside else {}), PIXTRAL)


def test_what_published_files_of_mistral_leave_out(tmp_path):
    given = {"head_dim": 64, "hidden_act": "silu", "image_size": 1540, "patch_size": 14, "rope_theta": 10000.0}
    raw = {"vision_config": {"model_type": "pixtral", **given}, **OF_MISTRAL}
    vision = vision_of(tmp_path, raw, PIXTRAL, size={"longest_edge": 1540})
    assert (vision.image_token_id, vision.scale_factor, vision.text_size) == (10, 2, 576)
    assert vision.connector.shapes == {
        "norm.weight": (1024,),
        "patch_merger.merging_layer.weight": (1024, 4096),
        "linear_1.weight": (576, 1024),
        "linear_2.weight": (576, 576),
    }
    config = parse_config(vision.tower, "config.json")
    assert (config.max_position_embeddings, config.patch_columns, config.rotary_dims) == (8192, 588, (64,) * 24)
    assert (config.intermediate_size, config.hidden_act, config.rms_norm_eps) == (4096, "silu", 1e-5)
    assert (config.rope_theta, config.alternating_turns, config.position_grid) == (10000.0, True, 0)
    # What the connector's norm adds is the text model's.
    assert vision.connector.norm_eps == 1e-5
    for model_type, given, eps in (("mistral", {}, 1e-6), ("ministral3", {"rms_norm_eps": 0.25}, 0.25)):
        text = {"model_type": model_type, "hidden_size": 576, **given}
        assert vision_of(tmp_path, {**raw, "text_config": text}, PIXTRAL).connector.norm_eps == eps
    for layer, layers in ((-2, 23), (1, 1), (24, 24)):
        found = vision_of(tmp_path, {**raw, "vision_feature_layer": layer}, PIXTRAL)
        assert found.tower["num_hidden_layers"] == layers
    with pytest.raises(CheckpointError, match="hidden_size is 96; expected a multiple of 64, four for each head"):
        parse_config({**vision.tower, "hidden_size": 96}, "config.json")
    with pytest.raises(CheckpointError, match="max_position_embeddings is 8193; expected an integer from 1 to 8192"):
        parse_config({**vision.tower, "max_position_embeddings": 8193}, "config.json")


def test_what_published_files_of_pixtral_leave_out(tmp_path):
    given = {"head_dim": 64, "hidden_act": "silu", "image_size": 1024, "rope_theta": 10000.0}
    raw = {"vision_config": {"model_type": "pixtral", **given}, **OF_MISTRAL, **LLAVA.projector}
    vision = vision_of(tmp_path, raw, LLAVA, size={"longest_edge": 1024})
    assert (vision.scale_factor, vision.tower["max_position_embeddings"]) == (1, 4096)
    assert vision.connector.shapes == {
        "linear_1.weight": (576, 1024),
        "linear_1.bias": (576,),
        "linear_2.weight": (576, 576),
        "linear_2.bias": (576,),
    }
    for strategy in ("default", None):
        with pytest.raises(
            UnsupportedModelError, match=f"vision_feature_select_strategy {strategy!r} is not supported"
        ):
            vision_of(tmp_path, {**raw, "vision_feature_select_strategy": strategy}, LLAVA)
    assert vision_of(tmp_path, {**raw, "vision_config": {"model_type": "clip_vision_model"}}, LLAVA) is None
    # A tower that is not supported may have its token beyond the vocabulary.
    text = {"architectures": None, **families.BY_NAME["mistral"].config}
    others = {"architectures": [LLAVA.wrapper], "image_token_index": 1 << 20, "text_config": text}
    assert parse_config({**others, "vision_config": {}}, "config.json").image_token_id is None


@pytest.mark.parametrize(
    ("change", "processor", "message"),
    [
        ({"mm_tokens_per_image": 15}, {}, "mm_tokens_per_image is 15; expected that of a square which divides the 8"),
        ({"mm_tokens_per_image": 9}, {}, "mm_tokens_per_image is 9; expected that of a square which divides the 8"),
        ({"mm_tokens_per_image": 0}, {}, "mm_tokens_per_image is 0; expected an integer from 1 to 4096"),
        ({"image_token_index": "x"}, {}, "image_token_id is 'x'; expected an integer from 0"),
        ({"mm_tokens_per_image": 4}, {}, "image_seq_length is 16; expected the model's 4 tokens of a tile"),
        ({}, {"size": {"height": 48, "width": 48}}, "image_size is 50; expected that of the square that images are"),
        ({}, {"image_processor_type": "Lfm2VlImageProcessor", "tile_size": 24}, "image_size is 50; expected that of"),
    ],
)
def test_values_of_gemma3_that_are_refused(change, processor, message, tmp_path):
    raw = {"image_token_id": None, "image_token_index": 300, "mm_tokens_per_image": 16, "vision_config": MEANS.section}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        vision_of(tmp_path, raw | change, MEANS, **processor)


def test_what_published_files_of_gemma3_leave_out(tmp_path):
    given = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_attention_heads": 16}
    given |= {"num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False}
    raw = {"image_token_id": None, "image_token_index": 262144, "vision_config": given}
    whole = {"size": {"height": 896, "width": 896}, "image_seq_length": 256}
    vision = vision_of(tmp_path, raw, MEANS, **whole)
    assert (vision.image_token_id, vision.scale_factor, vision.preparation.tile_size) == (262144, 4, 896)
    shapes = {"mm_soft_emb_norm.weight": (1152,), "mm_input_projection.weight": (576, 1152)}
    assert (vision.connector.shapes, vision.connector.norm_eps) == (shapes, 1e-6)
    config = parse_config(vision.tower, "config.json")
    assert (config.max_position_embeddings, config.patch_columns, config.head_dim) == (4096, 588, 72)
    text = {"architectures": None, **families.BY_NAME["gemma3"].config, "vocab_size": 262208}
    config = parse_config({"architectures": [MEANS.wrapper], "text_config": text, **raw}, "config.json")
    assert (config.joint_tokens, config.image_token_id) == (256, 262144)
    del raw["image_token_index"]
    config = parse_config({"architectures": [MEANS.wrapper], "text_config": text, **raw}, "config.json")
    assert (config.joint_tokens, config.image_token_id) == (0, None)
    assert vision_of(tmp_path, raw, MEANS, **whole) is None


@pytest.mark.parametrize(
    ("change", "processor", "message"),
    [
        ({"pooling_kernel_size": 7}, {}, "pooling_kernel_size is 7; expected an integer from 1 to 6"),
        ({"pooling_kernel_size": 2}, {}, "preprocessor_config.json: pooling_kernel_size is 3; expected the model's 2"),
        ({"patch_size": 8}, {}, "preprocessor_config.json: patch_size is 6; expected the model's 8"),
        ({"attention_bias": True}, {}, "vision_config: attention_bias true is not supported"),
        ({"standardize": 1}, {}, "vision_config: standardize is 1; expected true or false"),
        ({"rope_parameters": {"rope_theta": "x"}}, {}, "rope_parameters: rope_theta is 'x'; expected a number from"),
        ({"position_embedding_size": 0}, {}, "position_embedding_size is 0; expected an integer from 210 to"),
        ({}, {"max_soft_tokens": 1120}, "max_soft_tokens is 1120; expected an integer from 1 to 910"),
        ({}, {"do_normalize": True, "image_mean": [0.5, 0.5, 0.5]}, "image_mean is not supported"),
        (
            {},
            {"image_processor_type": "Qwen2VLImageProcessor", "merge_size": 3, "do_normalize": True},
            "for another model",
        ),
    ],
)
def test_values_of_gemma4_that_are_refused(change, processor, message, tmp_path):
    section = {**CLIPPED.section, "pooling_kernel_size": 3, **change}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        vision_of(tmp_path, {"vision_config": section}, CLIPPED, **processor)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 22}, "head_dim is 22; expected a multiple of 4"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"use_clipped_linears": "yes"}, "use_clipped_linears is 'yes'; expected true or false"),
    ],
)
def test_towers_of_gemma4_that_are_refused(change, message, tmp_path):
    section = {**CLIPPED.section, "pooling_kernel_size": 3, **change}
    vision = vision_of(tmp_path, {"vision_config": section}, CLIPPED)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        parse_config(vision.tower, "config.json")


def test_what_published_files_of_gemma4_leave_out(tmp_path):
    small = {"model_type": "gemma4_text", "hidden_size": 1536}
    raw = {"vision_config": {"use_clipped_linears": True}, "image_token_id": 258880, "text_config": small}
    published = {"patch_size": None, "pooling_kernel_size": None, "max_soft_tokens": None}
    vision = vision_of(tmp_path, raw, CLIPPED, **published)
    assert (vision.scale_factor, vision.preparation.max_tokens, vision.preparation.most_patches) == (3, 280, 2520)
    assert vision.connector.shapes == {"embed_vision.embedding_projection.weight": (1536, 768)}
    config = parse_config(vision.tower, "config.json")
    assert (config.hidden_size, config.head_dim, config.num_hidden_layers, config.rope_theta) == (768, 64, 16, 100)
    # The longest row of patches that a tile can have.
    assert (config.position_axes, config.max_position_embeddings, config.clipped_linears) == (840, 2520, True)
    text = {"architectures": None, **families.BY_NAME["gemma4-large"].config}
    whole = {"architectures": [CLIPPED.wrapper], "text_config": text, "image_token_id": 300}
    assert parse_config(whole, "config.json").joint_tokens == 0
    # Models with embeddings for layers read that of padding; of others it is no matter what that is.
    assert parse_config(whole | {"text_config": text | {"pad_token_id": -1}}, "config.json").image_input_id == 0
    with_inputs = {"architectures": None, **families.BY_NAME["gemma4"].config, "pad_token_id": 5}
    assert parse_config(whole | {"text_config": with_inputs}, "config.json").image_input_id == 5
    with pytest.raises(CheckpointError, match="pad_token_id is 517; expected an integer from 0 to 516"):
        parse_config(whole | {"text_config": with_inputs | {"pad_token_id": 517}}, "config.json")
    text["use_bidirectional_attention"] = "vision"
    assert parse_config(whole, "config.json").joint_tokens == 280
    with pytest.raises(UnsupportedModelError, match="vision_soft_tokens_per_image 64 for images of 70 is not supp"):
        few = {"vision_soft_tokens_per_image": 64, "text_config": small | {"use_bidirectional_attention": "vision"}}
        vision_of(tmp_path, {"vision_config": {**CLIPPED.section, "pooling_kernel_size": 3}, **few}, CLIPPED)


def test_bounds_that_a_checkpoint_lacks_are_none(tmp_path, model_folders):
    checkpoint = towers.write_checkpoint(CLIPPED, tmp_path / "checkpoint")

    def drop(tensors):
        for name in [name for name in tensors if name.endswith(("output_min", "output_max"))]:
            del tensors[name]
            tensors[name.replace("output", "input")][...] = -np.inf if name.endswith("min") else np.inf

    changed_tensors(checkpoint, drop)
    folder = tinychat.convert(checkpoint, tmp_path / "model", quant="f32")
    tensors = load_file(folder / VISION_FOLDER / "model.safetensors")
    largest = np.finfo(np.float32).max
    assert np.array_equal(tensors["down_bounds"], [[-largest, largest] * 2] * 3)
    stored = {name: each for name, each in towers.tower_tensors(CLIPPED).items() if not name.endswith(("min", "max"))}
    tile = towers.tile_of(CLIPPED)
    states = gemma4_towers.states(stored, CLIPPED.section, tile, CLIPPED.grid)
    projection = towers.connector_tensors(CLIPPED)["embedding_projection.weight"]
    expected = gemma4_towers.rows(stored, projection, states, CLIPPED.grid, 3)
    assert error_of(ImageEncoder(folder, threads=1).rows(tile, CLIPPED.grid), expected) < TOLERANCES["f32"]


@pytest.mark.parametrize("shape", [(0,), (3,), (1, 1)], ids=str)
def test_bounds_of_another_shape_are_refused(shape, tmp_path):
    checkpoint = towers.write_checkpoint(CLIPPED, tmp_path / "checkpoint")
    name = "model.vision_tower.encoder.layers.1.mlp.up_proj.input_max"
    changed_tensors(checkpoint, lambda tensors: tensors.update({name: np.ones(shape, np.float32)}))
    with pytest.raises(CheckpointError, match=r"a bound of a linear has shape \[.*\]; expected \[\]"):
        tinychat.convert(checkpoint, tmp_path / "model", quant="int8")


def test_what_published_files_of_lfm2_vl_leave_out(tmp_path):
    raw = {"image_token_id": None, "image_token_index": 396, "vision_feature_layer": -1}
    tiles = {"encoder_patch_size": 16, "tile_size": 512, "max_image_tokens": 256}
    vision = vision_of(tmp_path, raw, WIDE, **tiles)
    assert (vision.image_token_id, vision.scale_factor, vision.text_size) == (396, 2, 576)
    assert vision.connector.shapes == {
        "layer_norm.weight": (3072,),
        "layer_norm.bias": (3072,),
        "linear_1.weight": (2560, 3072),
        "linear_1.bias": (2560,),
        "linear_2.weight": (576, 2560),
        "linear_2.bias": (576,),
    }
    config = parse_config(vision.tower, "config.json")
    assert (config.position_grid, config.max_position_embeddings, config.patch_columns) == (16, 2048, 768)
    assert (config.hidden_size, config.head_dim, config.learned_positions) == (768, 64, False)
    # A square of a split image may be the largest tile.
    assert vision_of(tmp_path, raw, WIDE, **tiles | {"tile_size": 1024}).tower["max_position_embeddings"] == 4096
    for key, value, message in (
        ("num_patches", 250, "num_patches is 250; expected that of a square grid"),
        ("max_position_embeddings", 8193, "max_position_embeddings is 8193; expected an integer from 1 to 8192"),
    ):
        with pytest.raises(CheckpointError, match=message):
            parse_config({**vision.tower, key: value}, "config.json")


OF_IDEFICS3 = {"image_processor_type": "Idefics3ImageProcessor", "size": None}
OF_QWEN = {"image_processor_type": "Qwen2VLImageProcessor", "size": None}


OF_MISTRAL = {"image_token_id": None, "image_token_index": 10}


def test_tiles_of_another_family_are_refused(tmp_path):
    for seeing in (PIXTRAL, LLAVA):
        with pytest.raises(UnsupportedModelError, match="images prepared as for another model are not supported"):
            vision_of(tmp_path, {"vision_config": seeing.section, **OF_MISTRAL, **seeing.projector}, seeing, **OF_QWEN)
    with pytest.raises(UnsupportedModelError, match="images prepared as for another model are not supported"):
        vision_of(tmp_path, {"vision_config": WIDE.section}, WIDE, **OF_IDEFICS3)
    with pytest.raises(UnsupportedModelError, match="images prepared as for another model are not supported"):
        vision_of(tmp_path, {"vision_config": ROTATED.section | {"out_hidden_size": 576}}, ROTATED, **OF_IDEFICS3)
    lfm2 = {"image_processor_type": "Lfm2VlImageProcessorFast", "tile_size": 36}
    with pytest.raises(CheckpointError, match="image_size is 36; expected that of the tiles"):
        vision_of(tmp_path, {"scale_factor": 3, "vision_config": ODD.section}, **lfm2)


def test_what_published_files_leave_out(tmp_path):
    given = {"hidden_size": 768, "image_size": 512, "num_attention_heads": 12, "patch_size": 16}
    raw = {"image_token_id": 49190, "scale_factor": 4, "vision_config": {**given, "use_base_siglip": False}}
    tiles = {"max_image_size": {"longest_edge": 512}}
    vision = vision_of(tmp_path, raw, **tiles)
    assert (vision.connector.shapes, vision.preparation.tile_size) == ({"proj.weight": (576, 12288)}, 512)
    config = parse_config(vision.tower, "config.json")
    assert (config.max_position_embeddings, config.patch_columns, vision.image_token_id) == (1024, 768, 49190)
    assert (config.intermediate_size, config.num_hidden_layers, config.head_dim) == (3072, 12, 64)
    assert (config.hidden_act, config.rms_norm_eps, config.attention_scale) == ("gelu_tanh", 1e-6, 1 / 8)
    for architecture in ("LlavaForConditionalGeneration", "LlamaForCausalLM"):
        assert vision_of(tmp_path, {**raw, "architectures": [architecture]}, **tiles) is None
    assert vision_of(tmp_path, {**raw, "image_token_id": None}, **tiles) is None


def test_a_tower_of_another_activation_or_too_many_patches(tmp_path):
    tower = vision_of(tmp_path, {"scale_factor": 3, "vision_config": ODD.section}).tower
    with pytest.raises(UnsupportedModelError, match="hidden_act 'quick_gelu' is not supported"):
        parse_config({**tower, "hidden_act": "quick_gelu"}, "config.json")
    with pytest.raises(CheckpointError, match="image_size is 4096; expected one of 8192 patches of 6 by 6 at most"):
        parse_config({**tower, "image_size": 4096}, "config.json")


def changed_tensors(folder, change):
    """Rewrite the tensors of a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_tensors_that_are_missing_or_wrong(tmp_path):
    layer = "model.vision_model.encoder.layers.1.mlp.fc2.bias"
    projection = "model.connector.modality_projection.proj.weight"
    changes = {
        "has no tensor encoder.layers.1.mlp.fc2.bias": lambda tensors: tensors.pop(layer),
        "has no tensor connector.modality_projection.proj.weight": lambda tensors: tensors.pop(projection),
        "position_embedding.weight has shape": lambda tensors: tensors.update(
            {"model.vision_model.embeddings.position_embedding.weight": np.zeros((25, 88), np.float32)}
        ),
        "holds values that are not finite": lambda tensors: tensors[projection].__setitem__((0, 0), np.nan),
    }
    bias = "model.multi_modal_projector.layer_norm.bias"
    cases = [(ODD, *change) for change in changes.items()]
    cases += [
        (WIDE, "has no tensor multi_modal_projector.layer_norm.bias", lambda tensors: tensors.pop(bias)),
        (WIDE, "layer_norm.bias has shape", lambda tensors: tensors.update({bias: np.zeros(9, np.float32)})),
    ]
    for number, (seeing, message, change) in enumerate(cases):
        checkpoint = towers.write_checkpoint(seeing, tmp_path / f"checkpoint{number}")
        changed_tensors(checkpoint, change)
        with pytest.raises((CheckpointError, ConversionError), match=message):
            tinychat.convert(checkpoint, tmp_path / f"model{number}", quant="int8")


def test_a_checkpoint_without_a_tower_is_text_alone(tmp_path):
    checkpoint = towers.write_checkpoint(ODD, tmp_path / "checkpoint")

    def drop(tensors):
        for name in [name for name in tensors if ".vision_model." in name or ".connector." in name]:
            del tensors[name]

    changed_tensors(checkpoint, drop)
    assert not sees(tinychat.convert(checkpoint, tmp_path / "model", quant="int8"))


def test_an_engine_takes_patches_for_a_tower_alone(model_folders):
    engine = ImageEncoder(model_folders(ODD, "int8"), threads=1).engine
    chunk = new_sequence(engine, 36).chunk([0] * 36, 36, 0)
    good = towers.tile_of(ODD)
    for rows, outputs in ((None, 0), (good[:35], 0), (good[:, :107], 0), (good, 1)):
        with pytest.raises(SettingError, match="a vision tower takes 108 of each patch, and gives no logits"):
            engine.hidden_states([chunk._replace(rows=rows)]) if not outputs else engine.run(
                [chunk._replace(rows=rows, outputs=outputs)]
            )
    text = tinychat.load(model_folders(ODD, "int8"), threads=1).engine
    engine, count = ImageEncoder(model_folders(WIDE, "int8"), threads=1).engine, len(towers.tile_of(WIDE))
    chunk = new_sequence(engine, count).chunk([0] * count, count, 0)._replace(rows=towers.tile_of(WIDE))
    for positions in (None, np.zeros((count - 1, 88), np.float32), np.zeros((count, 87), np.float32)):
        with pytest.raises(SettingError, match="this vision tower takes 88 of each patch's position"):
            engine.hidden_states([chunk._replace(hidden=positions)])
    turned = ImageEncoder(model_folders(ROTATED, "int8"), threads=1).engine
    tile, positions = towers.tile_of(ROTATED), np.zeros((60, 88), np.float32)
    chunk = new_sequence(turned, 60).chunk([0] * 60, 60, 0)._replace(rows=tile, hidden=positions)
    for turns in (None, np.zeros((59, 44), np.float32), np.zeros((60, 43), np.float32)):
        with pytest.raises(SettingError, match="this vision tower takes 44 numbers of each patch"):
            turned.hidden_states([chunk._replace(turns=turns)])
    with pytest.raises(SettingError, match="turns of the shape \\(2, 24\\): this model takes none"):
        text.run([new_sequence(text, 64).chunk([1, 2], 2)._replace(turns=np.zeros((2, 24), np.float32))])
    with pytest.raises(SettingError, match="for 2 ids: give ids"):
        text.run([new_sequence(text, 64).chunk([1, 2], 2)._replace(rows=good[:2])])


def theirs_of(checkpoint, seeing):
    """Return transformers' model of a checkpoint."""
    import torch
    import transformers

    kind = getattr(transformers, seeing.wrapper)
    model, report = kind.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    assert not report["unexpected_keys"] and not report["missing_keys"], report
    return model.eval()


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@each_seeing
def test_rows_equal_transformers(seeing, model_folders, tmp_path):
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = theirs_of(towers.write_checkpoint(seeing, tmp_path / "checkpoint"), seeing)
    tiles = [towers.tile_of(seeing, seed) for seed in (9, 10)]
    inputs_of = qwen_inputs if seeing.is_qwen else gemma4_inputs if seeing.is_gemma4 else None
    inputs_of = pixtral_inputs if seeing.is_pixtral else inputs_of
    inputs = (inputs_of or (shaped_inputs if seeing.is_shaped else square_inputs))(seeing, tiles)
    with torch.no_grad():
        features = model.model.get_image_features(**inputs)
    found = [features.pooler_output, *(getattr(features, "deepstack_features", None) or [])]
    expected = (
        torch.cat([torch.cat(list(each)) for each in found], dim=1).numpy().reshape(len(tiles), seeing.tokens, -1)
    )
    for quant in ("f32", "int8"):
        encoder = ImageEncoder(model_folders(seeing, quant), threads=1)
        for tile, rows in zip(tiles, expected):
            assert error_of(encoder.rows(tile, seeing.grid), rows) < TOLERANCES[quant]


def shaped_inputs(seeing, tiles):
    """Return transformers' inputs of tiles of any grid."""
    import torch

    pixels = torch.from_numpy(np.stack(tiles))
    shapes = torch.tensor([seeing.grid] * len(tiles))
    mask = torch.ones(pixels.shape[:2], dtype=torch.long)
    return {"pixel_values": pixels, "spatial_shapes": shapes, "pixel_attention_mask": mask}


def qwen_inputs(seeing, tiles):
    """Return the same of Qwen3.5."""
    import torch

    pixels = np.concatenate([towers.as_frames(tile, seeing.grid, seeing.scale_factor) for tile in tiles])
    grids = torch.tensor([[1, *seeing.grid]] * len(tiles))
    return {"pixel_values": torch.from_numpy(pixels), "image_grid_thw": grids}


def gemma4_inputs(seeing, tiles):
    """Return the same of Gemma 4, whose tower takes pixels from 0 to 1."""
    import torch

    places = [(column, row) for row in range(seeing.grid[0]) for column in range(seeing.grid[1])]
    pixels = torch.from_numpy(np.stack(tiles))
    return {"pixel_values": (pixels + 1) / 2, "image_position_ids": torch.tensor([places] * len(tiles))}


def pixtral_inputs(seeing, tiles):
    """Return the same of Pixtral."""
    import torch

    (rows, columns), size = seeing.grid, seeing.section["patch_size"]
    pixels = np.stack(tiles).reshape(-1, rows, columns, 3, size, size).transpose(0, 3, 1, 4, 2, 5)
    height, width = rows * size, columns * size
    pixels = torch.from_numpy(pixels.reshape(-1, 3, height, width))
    return {"pixel_values": pixels, "image_sizes": torch.tensor([[height, width]] * len(tiles))}


def square_inputs(seeing, tiles):
    """Return the same of square ones."""
    import torch

    grid, size = seeing.side, seeing.section["patch_size"]
    # Pixels behind the last whole patch are not looked at.
    pixels = np.ones((len(tiles), 3, *[seeing.section["image_size"]] * 2), np.float32)
    for image, tile in zip(pixels, tiles):
        patches = tile.reshape(grid, grid, 3, size, size).transpose(2, 0, 3, 1, 4)
        image[:, : grid * size, : grid * size] = patches.reshape(3, grid * size, grid * size)
    return {"pixel_values": torch.from_numpy(pixels)[None if not seeing.averages else slice(None)]}


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
def test_an_image_becomes_the_rows_of_transformers(model_folders, tmp_path, rng):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pillow = pytest.importorskip("PIL.Image")
    checkpoint = towers.write_checkpoint(ODD, tmp_path / "checkpoint")
    pixels = rng.integers(0, 256, (70, 100, 3)).astype(np.uint8)
    processor = transformers.models.idefics3.image_processing_pil_idefics3.Idefics3ImageProcessorPil
    seen = processor.from_pretrained(checkpoint)([[pillow.fromarray(pixels)]], return_tensors="pt").pixel_values
    with torch.no_grad():
        found = theirs_of(checkpoint, ODD).model.get_image_features(seen).pooler_output
    expected = np.concatenate([each.numpy() for each in found])
    encoder = ImageEncoder(model_folders(ODD, "f32"), threads=1)
    tiles = prepare(Image(pixels), encoder.vision.preparation).tiles
    rows = np.concatenate([encoder.rows(tile, ODD.grid) for tile in tiles])
    assert len(tiles) == seen.shape[1] > 4
    assert error_of(rows, expected.reshape(rows.shape)) < TOLERANCES["f32"]


@pytest.mark.live
@pytest.mark.parametrize(
    ("wrapper", "model_type"), [("Idefics3ForConditionalGeneration", "idefics3"), (ODD.wrapper, "smolvlm")]
)
def test_defaults_equal_transformers(wrapper, model_type, tmp_path):
    theirs = pytest.importorskip("transformers").AutoConfig.for_model(model_type).to_dict()
    # Of the defaults, squares are none of the patches.
    raw = {"architectures": [wrapper], "vision_config": {"image_size": 256}}
    vision = vision_of(tmp_path, raw, max_image_size={"longest_edge": 256})
    assert vision.scale_factor == theirs["scale_factor"]
    own = {key: value for key, value in vision.tower.items() if key not in ("architectures", "model_type")}
    assert ({**theirs["vision_config"], "image_size": 256}.items() >= own.items()) and len(own) == 9


@pytest.mark.live
def test_defaults_of_lfm2_vl_equal_transformers(tmp_path):
    theirs = pytest.importorskip("transformers").AutoConfig.for_model("lfm2_vl").to_dict()
    vision = vision_of(tmp_path, {"text_config": theirs["text_config"]}, WIDE, encoder_patch_size=16, tile_size=512)
    first, last = vision.connector.linears
    assert vision.scale_factor == theirs["downsample_factor"]
    assert (first.rows, last.columns) == (theirs["projector_hidden_size"],) * 2
    assert (first.bias, last.bias) == (theirs["projector_bias"],) * 2
    assert bool(vision.connector.norm) == theirs["projector_use_layernorm"]
    ours = {"architectures", "model_type", "max_position_embeddings"}
    own = {key: value for key, value in vision.tower.items() if key not in ours}
    assert theirs["vision_config"].items() >= own.items() and len(own) == 9


@pytest.mark.live
@pytest.mark.parametrize(
    ("wrapper", "model_type"),
    [
        (ROTATED.wrapper, "qwen3_5"),
        (towers.QWEN3_5_MOE, "qwen3_5_moe"),
        (towers.QWEN3_VL, "qwen3_vl"),
        (towers.QWEN3_VL_MOE, "qwen3_vl_moe"),
    ],
)
def test_defaults_of_qwen_equal_transformers(wrapper, model_type, tmp_path):
    theirs = pytest.importorskip("transformers").AutoConfig.for_model(model_type).to_dict()
    text = {**theirs["text_config"], "hidden_size": theirs["vision_config"]["out_hidden_size"]}
    raw = {"architectures": [wrapper], "text_config": text}
    vision = vision_of(tmp_path, raw, ROTATED, patch_size=16)
    assert vision.scale_factor == theirs["vision_config"]["spatial_merge_size"]
    names = {**theirs["vision_config"], "depth": 27, "num_heads": 16}
    ours = {"architectures", "model_type", "max_position_embeddings", "rope_theta"}
    own = {key: value for key, value in vision.tower.items() if key not in ours}
    assert names.items() >= own.items() and len(own) == 8
    stacked = theirs["vision_config"].get("deepstack_visual_indexes", ())
    assert tuple(parts.layer - 1 for parts in vision.others) == tuple(stacked)
    assert vision.tower["rope_theta"] == theirs["vision_config"]["rope_parameters"]["rope_theta"]


@pytest.mark.live
def test_defaults_of_gemma3_equal_transformers(tmp_path):
    theirs = pytest.importorskip("transformers").AutoConfig.for_model("gemma3").to_dict()
    # Of the defaults, the tower has fewer patches than the model tokens.
    raw = {
        "image_token_id": None,
        "image_token_index": theirs["image_token_index"],
        "vision_config": {"image_size": 512},
    }
    whole = {"size": {"height": 512, "width": 512}, "image_seq_length": theirs["mm_tokens_per_image"]}
    vision = vision_of(tmp_path, raw, MEANS, **whole)
    assert vision.scale_factor == 512 // theirs["vision_config"]["patch_size"] // 16
    own = {key: value for key, value in vision.tower.items() if key not in ("architectures", "model_type")}
    assert ({**theirs["vision_config"], "image_size": 512}.items() >= own.items()) and len(own) == 9


@pytest.mark.live
def test_defaults_of_gemma4_equal_transformers(tmp_path):
    theirs = pytest.importorskip("transformers").Gemma4Config(vision_config={}).to_dict()["vision_config"]
    vision = vision_of(tmp_path, {"image_token_id": 300}, CLIPPED, patch_size=None, pooling_kernel_size=None)
    assert vision.scale_factor == theirs["pooling_kernel_size"]
    ours = {"architectures", "model_type", "max_position_embeddings", "position_embedding_size", "hidden_act"}
    own = {key: value for key, value in vision.tower.items() if key not in ours}
    assert own.pop("rope_theta") == theirs["rope_parameters"]["rope_theta"]
    assert theirs.items() >= own.items() and len(own) == 12
    assert theirs["hidden_activation"] == vision.tower["hidden_act"]


@pytest.mark.live
@pytest.mark.parametrize(("seeing", "model_type"), [(PIXTRAL, "mistral3"), (LLAVA, "llava")], ids=["mistral3", "llava"])
def test_defaults_of_mistral_equal_transformers(seeing, model_type, tmp_path):
    section = {"model_type": "pixtral"}
    theirs = pytest.importorskip("transformers").AutoConfig.for_model(model_type, vision_config=section).to_dict()
    text = {**theirs["text_config"], "hidden_size": 576}
    strategy = {"vision_feature_select_strategy": "full"}
    vision = vision_of(tmp_path, {"text_config": text, "vision_config": section, **OF_MISTRAL, **strategy}, seeing)
    sizes = theirs["vision_config"]
    ours = {"architectures", "model_type", "max_position_embeddings", "rope_theta", "num_hidden_layers"}
    own = {key: value for key, value in vision.tower.items() if key not in ours}
    assert sizes.items() >= own.items() and len(own) == 6
    assert vision.tower["num_hidden_layers"] == sizes["num_hidden_layers"] + 1 + theirs["vision_feature_layer"]
    assert vision.tower["rope_theta"] == sizes["rope_parameters"]["rope_theta"]
    assert [linear.bias for linear in vision.connector.linears[-2:]] == [theirs["multimodal_projector_bias"]] * 2
    assert vision.scale_factor == theirs.get("spatial_merge_size", 1)
