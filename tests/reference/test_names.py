"""None of the 68 tests of the five systems gets lost: each is here under its own name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ORIGINALS = {
    "a_smooth_operator": """
        checkpoint_creation checkpoint_with_metadata checkpoint_serialization memory_store_save_and_load
        memory_store_load_by_id memory_store_load_nonexistent memory_store_list_ordered memory_store_prune
        memory_store_prune_different_agents strategy_every_n strategy_after_tool_call strategy_never
        file_store_save_creates_file file_store_load_roundtrip file_store_list_scans_directory file_store_prune_deletes_old
        file_store_nested_agent_dirs file_store_missing_dir_created sqlite_open_creates_schema
        sqlite_save_load_latest_roundtrip sqlite_load_by_id sqlite_list_newest_first sqlite_prune_keeps_n
        sqlite_prune_isolates_agents sqlite_nonexistent_returns_none sqlite_in_memory_works sqlite_concurrent_saves
    """,
    "b_rust_ai_agents": """
        save_and_load_checkpoint load_latest checkpoint_history fork_thread rewind max_checkpoints_cleanup delete_thread
        list_threads current_step checkpoint_with_label parent_chain
    """,
    "c_ares": """
        save_and_load load_nonexistent multiple_steps cleanup separate_sessions checkpoint_status_serialization
    """,
    "d_aethershell": """
        agent_state_creation agent_state_custom_state conversation_creation conversation_add_message conversation_auto_title
        conversation_auto_title_truncation message_user message_assistant message_system message_tool_result
        checkpoint_config_default memory_backend_agent_operations memory_backend_conversation_operations
        memory_backend_search persistence_manager_basic persistence_manager_checkpoint persistence_manager_stats
        persistence_builtins message_role_equality checkpoint_type_equality tool_call_status_equality
        attachment_type_equality
    """,
    "e_continuum": "checkpoint_writer_creation save_and_load_checkpoint",
}


@pytest.mark.parametrize("system", ORIGINALS)
def test_every_original_test_of_a_system_is_here(system: str) -> None:
    source = Path(__file__).with_name(f"test_{system}.py").read_text(encoding="utf-8")
    here = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert {f"test_{name}" for name in ORIGINALS[system].split()} <= here


def test_they_are_sixty_eight() -> None:
    assert [len(set(names.split())) for names in ORIGINALS.values()] == [27, 11, 6, 22, 2]
