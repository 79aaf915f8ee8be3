buffer_load_dword v7, v11, s[24:27], 0 offen
buffer_load_dwordx2 v[38:39], v0, s[20:23], 0 offen
buffer_load_dwordx4 v[2:5], v10, s[24:27], 0 offen
buffer_load_ushort v40, v21, s[28:31], 0 offen
buffer_store_dword v0, v28, s[4:7], 0 offen
buffer_store_dwordx4 a[4:7], v0, s[0:3], 0 offen
buffer_store_short v1, v26, s[28:31], 0 offen
ds_bpermute_b32 v6, v21, v2
ds_read2_b32 v[22:23], v69 offset1:8
ds_read2_b64 v[196:199], v187 offset1:16
ds_read2st64_b32 v[16:17], v10 offset0:32 offset1:36
ds_read2st64_b64 v[74:77], v104 offset1:8
ds_read_b128 v[6:9], v3
ds_read_b32 v1, v0
ds_read_b64 v[78:79], v53
ds_read_u16 v5, v27 offset:2560
ds_write2_b32 v56, v57, v58 offset1:8
ds_write2_b64 v175, v[2:3], v[4:5] offset1:16
ds_write2st64_b32 v51, v23, v15 offset1:16
ds_write2st64_b64 v173, v[42:43], v[38:39] offset0:80 offset1:88
ds_write_b128 v2, v[6:9]
ds_write_b16 v0, v69 offset:2048
ds_write_b32 v101, v2 offset:17280
ds_write_b64 v59, v[64:65]
global_load_dword v30, v[32:33], off
global_load_dwordx2 v[32:33], v[48:49], off
global_load_dwordx4 v[58:61], v[42:43], off
global_load_ushort v24, v[26:27], off
global_store_dword v[10:11], v4, off offset:2048
global_store_dwordx2 v[8:9], v[10:11], off
global_store_dwordx3 v[8:9], v[0:2], off
global_store_dwordx4 v[36:37], v[50:53], off
global_store_short v[44:45], v1, off
global_store_short_d16_hi v[0:1], v3, off offset:32
s_abs_i32 s24, s16
s_add_i32 s17, s24, s17
s_add_i32 s5, s53, 0x7f
s_add_u32 s16, s6, s16
s_add_u32 s24, s24, 0x4000
s_addc_u32 s21, s19, s21
s_addk_i32 s50, 0xff
s_and_b32 s18, s10, -8
s_and_b32 s29, s29, 0xffff
s_and_b64 s[36:37], vcc, s[0:1]
s_and_saveexec_b64 s[2:3], s[12:13]
s_andn2_b64 vcc, exec, s[40:41]
s_andn2_saveexec_b64 s[26:27], s[26:27]
s_ashr_i32 s21, s20, 31
s_ashr_i64 s[6:7], s[6:7], 2
s_barrier
s_bfe_i32 s60, s60, 0x10006
s_bitcmp0_b32 s8, 7
s_bitcmp1_b32 s10, 0
s_branch 58
s_brev_b32 s4, -2
s_cbranch_execnz 239
s_cbranch_execz 24
s_cbranch_scc0 80
s_cbranch_scc1 121
s_cbranch_vccnz 5
s_cbranch_vccz 244
s_cmp_eq_u32 s18, 0
s_cmp_eq_u64 s[34:35], 3
s_cmp_ge_i32 s18, s17
s_cmp_ge_u32 s24, s19
s_cmp_gt_i32 s8, 0
s_cmp_gt_u32 s26, 63
s_cmp_le_i32 s2, s25
s_cmp_lg_u32 s20, 0
s_cmp_lg_u64 s[24:25], 0
s_cmp_lt_i32 s42, 1
s_cmp_lt_u32 s26, 64
s_cmpk_eq_i32 s4, 0x1000
s_cmpk_gt_u32 s55, 0x80
s_cmpk_lt_i32 s52, 0x80
s_cmpk_lt_u32 s29, 0x41
s_cselect_b32 s20, s21, s20
s_cselect_b32 s0, s0, 0x800
s_cselect_b64 s[2:3], -1, 0
s_endpgm
s_flbit_i32 s4, s19
s_load_dword s34, s[10:11], 0x0
s_load_dwordx16 s[8:23], s[0:1], 0x0
s_load_dwordx2 s[34:35], s[0:1], 0x58
s_load_dwordx4 s[20:23], s[0:1], 0x38
s_load_dwordx8 s[20:27], s[0:1], 0x40
s_lshl3_add_u32 s2, s53, 0
s_lshl_b32 s0, s33, 4
s_lshl_b64 s[22:23], s[24:25], 4
s_lshr_b32 s54, s40, 3
s_lshr_b64 s[2:3], s[0:1], 3
s_min_i32 s25, s24, 4
s_min_u32 s4, s4, 1
s_mov_b32 s19, 0
s_mov_b32 s18, 0x7ffffffe
s_mov_b64 s[2:3], -1
s_mov_b64 s[16:17], 0x80
s_movk_i32 s23, 0x7fff
s_mul_hi_i32 s1, s36, s34
s_mul_hi_u32 s1, s24, s12
s_mul_i32 s4, s24, s4
s_nop 2
s_or_b32 s34, s20, s0
s_or_b32 s9, s8, 0x2000
s_or_b64 s[56:57], s[28:29], s[34:35]
s_or_saveexec_b64 s[12:13], s[12:13]
s_orn2_b64 s[4:5], s[4:5], exec
s_setprio 1
s_sub_i32 s16, s16, s17
s_sub_u32 s34, s34, s36
s_subb_u32 s39, s25, s22
s_waitcnt vmcnt(1)
s_xor_b32 s23, s23, s22
s_xor_b64 s[18:19], s[30:31], s[18:19]
v_accvgpr_read_b32 v23, a13
v_accvgpr_write_b32 a8, 0
v_add3_u32 v0, v0, v1, s2
v_add_co_u32_e32 v6, vcc, s7, v6
v_add_co_u32_e32 v6, vcc, 0x2000, v4
v_add_f32_dpp v0, v0, v0 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:1
v_add_f32_e32 v22, v25, v32
v_add_f32_e32 v5, 0xc0200000, v5
v_add_f32_e64 v2, s8, 0
v_add_lshl_u32 v0, s40, v14, 1
v_add_u32_e32 v46, v37, v0
v_add_u32_e32 v4, 0x400, v54
v_add_u32_sdwa v2, s12, v0 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_0
v_addc_co_u32_e32 v13, vcc, 0, v13, vcc
v_alignbit_b32 v2, v3, v2, 16
v_and_b32_e32 v4, 48, v4
v_and_b32_e32 v47, 0xffff0000, v31
v_and_b32_sdwa v21, v18, v24 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD
v_and_or_b32 v3, v4, s0, v3
v_ashrrev_i32_e32 v13, 31, v12
v_bfe_i32 v37, v0, 0, 1
v_bfe_u32 v2, v1, 16, 1
v_bfi_b32 v29, s11, v61, v60
v_bfrev_b32_e32 v34, 1
v_cmp_eq_u32_e32 vcc, 0, v15
v_cmp_eq_u32_e64 s[0:1], 7, v26
v_cmp_eq_u64_e32 vcc, s[20:21], v[34:35]
v_cmp_eq_u64_e64 s[18:19], s[22:23], v[18:19]
v_cmp_ge_f32_e64 s[4:5], |v8|, 1.0
v_cmp_ge_i32_e32 vcc, s17, v2
v_cmp_ge_i32_e64 s[0:1], s17, v2
v_cmp_ge_i64_e32 vcc, s[36:37], v[22:23]
v_cmp_ge_i64_e64 s[8:9], s[36:37], v[74:75]
v_cmp_ge_u32_e32 vcc, v7, v3
v_cmp_gt_f16_e32 vcc, 0, v7
v_cmp_gt_f32_e32 vcc, 0, v14
v_cmp_gt_f32_e64 s[8:9], 0, v22
v_cmp_gt_i32_e32 vcc, s12, v12
v_cmp_gt_i32_e64 s[28:29], s44, v34
v_cmp_gt_i64_e32 vcc, s[22:23], v[28:29]
v_cmp_gt_i64_e64 s[12:13], s[26:27], v[2:3]
v_cmp_gt_u32_e32 vcc, s14, v76
v_cmp_gt_u32_e64 s[0:1], s15, v16
v_cmp_le_f32_e32 vcc, s13, v5
v_cmp_le_i32_e32 vcc, s53, v0
v_cmp_le_i32_e64 s[0:1], s28, v18
v_cmp_le_i64_e32 vcc, s[38:39], v[2:3]
v_cmp_le_u32_e32 vcc, s17, v2
v_cmp_le_u32_e64 s[18:19], s27, v8
v_cmp_lt_f16_sdwa vcc, v2, v21 src0_sel:WORD_1 src1_sel:DWORD
v_cmp_lt_i32_e32 vcc, 0, v20
v_cmp_lt_i32_e64 s[6:7], v55, v182
v_cmp_lt_i64_e32 vcc, s[46:47], v[0:1]
v_cmp_lt_i64_e64 s[12:13], s[42:43], v[14:15]
v_cmp_lt_u32_e32 vcc, s6, v2
v_cmp_lt_u32_e64 s[0:1], s0, v22
v_cmp_lt_u64_e64 s[28:29], s[28:29], 3
v_cmp_ne_u32_e32 vcc, v1, v2
v_cmp_ne_u32_e64 s[4:5], 1, v4
v_cmp_neq_f32_e32 vcc, s5, v17
v_cmp_nge_f32_e32 vcc, 0, v17
v_cmp_nge_f32_e64 s[0:1], 0, v14
v_cmp_ngt_f32_e32 vcc, 0, v9
v_cmp_ngt_f32_e64 s[2:3], s2, v86
v_cmp_nlt_f32_e32 vcc, s18, v30
v_cmp_nlt_f32_e64 s[4:5], |v95|, 1.0
v_cmp_o_f32_e32 vcc, v11, v11
v_cmp_o_f32_e64 s[18:19], v40, v40
v_cmp_u_f32_e32 vcc, v8, v8
v_cmp_u_f32_e64 s[0:1], v59, v59
v_cndmask_b32_e32 v18, v41, v20, vcc
v_cndmask_b32_e64 v53, v1, v44, s[2:3]
v_cndmask_b32_sdwa v11, v11, v17, vcc dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_1
v_cvt_f16_f32_e32 v32, v22
v_cvt_f32_f16_e32 v44, v17
v_cvt_f32_f16_sdwa v25, v10 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1
v_cvt_f32_i32_e32 v37, s24
v_cvt_f32_u32_e32 v1, s23
v_cvt_f32_ubyte0_e32 v1, s10
v_cvt_i32_f32_e32 v69, v70
v_cvt_u32_f32_e32 v8, v4
v_div_fixup_f32 v24, v16, v85, v24
v_div_fmas_f32 v33, v33, v47, v35
v_div_scale_f32 v26, s[0:1], v85, v85, v24
v_exp_f32_e32 v25, v25
v_fma_f32 v27, -v27, v33, v31
v_fma_mix_f32 v27, v10, v17, neg(0) op_sel_hi:[1,1,0]
v_fma_mixlo_f16 v36, v32, v36, neg(0)
v_fmaak_f32 v30, v30, v31, 0x3e0375d0
v_fmac_f32_e32 v41, v43, v35
v_fmac_f32_e32 v97, 0xba1345e1, v39
v_fmamk_f32 v98, v39, 0xb2a5705f, v98
v_ldexp_f32 v66, v66, v67
v_lshl_add_u32 v1, s26, 5, v0
v_lshl_add_u64 v[14:15], v[14:15], 1, s[6:7]
v_lshl_or_b32 v4, v19, 6, v4
v_lshlrev_b32_e32 v0, 16, v16
v_lshlrev_b32_sdwa v2, v3, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_0
v_lshlrev_b64 v[0:1], 1, v[0:1]
v_lshrrev_b32_e32 v4, 16, v4
v_mad_i64_i32 v[2:3], s[2:3], v6, s11, 0
v_mad_u64_u32 v[20:21], s[6:7], v32, s8, 0
v_max3_f32 v17, v17, v4, v5
v_max_f32_e32 v27, v21, v21
v_max_f32_e32 v2, 0xff800000, v2
v_max_f32_e64 v20, |v3|, |v3|
v_max_i32_e32 v7, v5, v7
v_mbcnt_hi_u32_b32 v2, -1, v2
v_mbcnt_lo_u32_b32 v14, -1, 0
v_mfma_f32_16x16x16_bf16 v[18:21], v[72:73], v[60:61], v[10:13]
v_mfma_f32_16x16x16_f16 v[30:33], v[136:137], v[24:25], v[30:33]
v_mfma_f32_16x16x4_f32 v[2:5], v34, v5, v[38:41]
v_mfma_f32_32x32x4_xf32 a[0:15], v[64:65], v[44:45], a[0:15]
v_mfma_f32_32x32x8_bf16 v[2:17], v[22:23], v[26:27], v[2:17]
v_mfma_f32_32x32x8_f16 v[0:15], v[22:23], v[30:31], v[0:15]
v_min_f32_e32 v22, 4.0, v22
v_min_f32_e64 v0, |v4|, s1
v_min_i32_e32 v24, s10, v20
v_mov_b32_dpp v47, v47 quad_perm:[3,2,1,0] row_mask:0xf bank_mask:0xf bound_ctrl:1
v_mov_b32_e32 v19, v17
v_mov_b32_e32 v15, 0x7fff
v_mov_b64_e32 v[0:1], s[14:15]
v_mov_b64_e32 v[0:1], 0x800
v_mul_f32_e32 v38, v15, v17
v_mul_f32_e32 v68, 0xbfb8aa3b, v67
v_mul_f32_e64 v49, v17, -v10
v_mul_hi_u32 v2, v1, v2
v_mul_lo_u32 v16, v16, s14
v_not_b32_e32 v15, 63
v_or3_b32 v10, v4, s30, 32
v_or_b32_e32 v9, s53, v50
v_or_b32_e32 v36, 0x42, v42
v_or_b32_sdwa v3, v3, v4 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_1
v_pack_b32_f16 v43, v46, v49
v_perm_b32 v3, v30, v26, s1
v_pk_add_f32 v[12:13], s[2:3], v[12:13] op_sel_hi:[0,1]
v_pk_fma_f32 v[0:1], v[12:13], v[0:1], v[2:3]
v_pk_mov_b32 v[56:57], v[54:55], v[56:57] op_sel:[1,0]
v_pk_mul_f32 v[74:75], v[18:19], v[40:41]
v_rcp_f32_e32 v50, v43
v_rcp_iflag_f32_e32 v1, v1
v_readfirstlane_b32 s34, v1
v_readlane_b32 s8, v10, 63
v_rndne_f32_e32 v54, v52
v_rsq_f32_e32 v67, v41
v_sub_co_u32_e32 v183, vcc, v2, v5
v_sub_f32_e32 v54, 1.0, v38
v_sub_u32_e32 v1, s16, v1
v_sub_u32_e32 v64, 0xffffffc0, v18
v_subb_co_u32_e32 v141, vcc, v1, v4, vcc
v_subb_co_u32_e64 v8, s[18:19], v8, v10, vcc
v_subbrev_co_u32_e64 v8, s[18:19], 0, v8, s[18:19]
v_subrev_co_u32_e64 v9, s[18:19], s26, v5
v_subrev_f32_e32 v7, s44, v13
v_subrev_u32_e32 v10, s21, v8
v_trunc_f32_e32 v4, v4
v_xad_u32 v19, v19, 48, 0
v_xor_b32_e32 v6, v14, v6
v_xor_b32_e32 v4, 0x860, v4
