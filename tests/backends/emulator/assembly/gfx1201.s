buffer_load_b128 v[1:4], v3, s[4:7], null offen
buffer_load_b32 v2, v2, s[16:19], null offen
buffer_load_u16 v62, v53, s[20:23], null offen
buffer_store_b128 v[4:7], v33, s[20:23], null offen
buffer_store_b16 v29, v20, s[24:27], null offen
buffer_store_b32 v0, v8, s[8:11], null offen
ds_bpermute_b32 v1, v2, v0
ds_load_2addr_b32 v[3:4], v5 offset1:8
ds_load_2addr_stride64_b32 v[4:5], v6 offset1:1
ds_load_b128 v[1:4], v72
ds_load_b32 v4, v3
ds_load_b64 v[8:9], v23
ds_store_2addr_b32 v8, v6, v9 offset0:96 offset1:112
ds_store_2addr_stride64_b32 v166, v4, v5 offset0:32 offset1:33
ds_store_b128 v98, v[17:20]
ds_store_b16 v83, v8 offset:3840
ds_store_b16_d16_hi v83, v42 offset:2560
ds_store_b32 v0, v35
ds_store_b64 v25, v[0:1]
global_inv scope:SCOPE_SE
global_load_b128 v[28:31], v[4:5], off
global_load_b32 v9, v8, s[16:17]
global_load_b64 v[36:37], v[34:35], off
global_load_d16_b16 v15, v[1:2], off offset:1024
global_load_d16_hi_b16 v46, v[70:71], off
global_load_u16 v12, v[3:4], off offset:1024
global_store_b128 v[4:5], v[0:3], off
global_store_b16 v[0:1], v2, off offset:1536
global_store_b32 v[2:3], v85, off offset:1024
global_store_b64 v5, v[1:2], s[4:5]
global_store_b96 v[0:1], v[158:160], off
global_store_d16_hi_b16 v[36:37], v0, off offset:1792
s_abs_i32 s33, s35
s_add_co_ci_u32 s12, s21, s22
s_add_co_i32 s20, s20, 16
s_add_co_i32 s15, s16, 0x7f
s_add_co_u32 s16, s20, s23
s_add_f32 s0, s0, s1
s_add_nc_u64 s[30:31], s[22:23], s[30:31]
s_add_nc_u64 s[24:25], s[24:25], 0x2000
s_addk_co_i32 s21, 0x1000
s_and_b32 s22, s23, s4
s_and_b32 s10, s10, 0x200
s_and_not1_b32 s0, s9, exec_lo
s_and_not1_saveexec_b32 s1, s0
s_and_saveexec_b32 s0, s6
s_ashr_i32 s11, s11, 6
s_ashr_i64 s[22:23], s[2:3], 3
s_barrier_signal -1
s_barrier_wait 0xffff
s_bfe_i32 s2, s30, 0x10000
s_bfe_u32 s1, ttmp8, 0x50019
s_bitcmp0_b32 s2, 1
s_branch 65445
s_cbranch_execnz 91
s_cbranch_execz 65434
s_cbranch_scc0 305
s_cbranch_scc1 390
s_cbranch_vccnz 527
s_cbranch_vccz 597
s_clause 0x4
s_cls_i32 s4, s15
s_cmp_eq_u32 s33, s4
s_cmp_eq_u32 s0, 0x400
s_cmp_eq_u64 s[30:31], 3
s_cmp_ge_i32 s4, s33
s_cmp_ge_u32 s22, s6
s_cmp_gt_i32 s2, 0
s_cmp_gt_u32 s14, 63
s_cmp_gt_u32 s14, 0x7f
s_cmp_le_i32 s8, s13
s_cmp_lg_u32 s1, 1
s_cmp_lg_u64 s[26:27], 0
s_cmp_lt_f32 s0, 0xd800000
s_cmp_lt_i32 s49, s22
s_cmp_lt_u32 s29, 33
s_cmp_lt_u32 s14, 0x80
s_cselect_b32 s6, s22, s20
s_cselect_b32 s10, s6, 0x800
s_cvt_f32_i32 s28, s27
s_cvt_f32_u32 s12, s10
s_cvt_u32_f32 s18, s18
s_delay_alu instid0(VALU_DEP_3)
s_endpgm
s_fmac_f32 s12, s13, 0x4f800000
s_load_b128 s[20:23], s[0:1], 0x80
s_load_b256 s[24:31], s[0:1], 0x0
s_load_b32 s3, s[0:1], 0x60
s_load_b512 s[4:19], s[0:1], 0x38
s_load_b64 s[24:25], s[0:1], 0x30
s_load_b96 s[24:26], s[0:1], 0x40
s_lshl3_add_u32 s17, s39, 0
s_lshl_b32 s33, s24, 3
s_lshl_b64 s[14:15], s[30:31], 1
s_lshr_b32 s3, s3, 29
s_lshr_b64 s[16:17], s[20:21], 3
s_min_i32 s21, s21, 8
s_min_u32 s3, s3, 8
s_mov_b32 s29, s23
s_mov_b32 s20, 0xba1345e1
s_mov_b64 s[28:29], s[24:25]
s_mul_f32 s0, s8, s0
s_mul_f32 s4, s4, 0x4f7ffffe
s_mul_hi_u32 s21, s18, s23
s_mul_i32 s25, s19, s22
s_mul_u64 s[10:11], s[10:11], s[28:29]
s_nop 0
s_or_b32 exec_lo, exec_lo, s16
s_or_b32 s7, s5, 0x2000
s_or_b64 s[56:57], s[24:25], s[34:35]
s_or_saveexec_b32 s16, s4
s_sendmsg sendmsg(MSG_DEALLOC_VGPRS)
s_sub_co_ci_u32 s18, s19, s23
s_sub_co_i32 s11, s6, s5
s_sub_co_u32 s14, s16, s20
s_sub_nc_u64 s[24:25], s[2:3], s[8:9]
s_trunc_f32 s15, s15
s_wait_alu depctr_sa_sdst(0) depctr_va_sdst(0)
s_wait_dscnt 0xb
s_wait_kmcnt 0x0
s_wait_loadcnt 0x6
s_wait_loadcnt_dscnt 0x0
s_wait_storecnt 0x0
s_wait_storecnt_dscnt 0x0
s_xor_b32 s4, ttmp9, s19
s_xor_b64 s[22:23], s[22:23], s[20:21]
v_add3_u32 v46, 0, s3, v34
v_add3_u32 v7, v4, v7, 0x7fff
v_add_co_ci_u32_e64 v3, null, s37, 0, s6
v_add_co_u32 v19, s7, s30, v4
v_add_co_u32 v24, vcc_lo, 0x80, v9
v_add_f32_dpp v43, v43, v43 row_shr:2 row_mask:0xf bank_mask:0xf bound_ctrl:1
v_add_f32_e32 v0, v3, v18
v_add_f32_e32 v2, 0xc0200000, v2
v_add_lshl_u32 v8, s6, v3, 1
v_add_nc_u32_e32 v50, v51, v0
v_add_nc_u32_e32 v1, 0x100, v1
v_alignbit_b32 v9, v9, v5, 16
v_and_b16 v65.l, v0.l, 31
v_and_b32_e32 v45, 15, v0
v_and_b32_e32 v20, 0xffff0000, v7
v_and_or_b32 v19, v0, 31, s16
v_and_or_b32 v0, 0x400, s0, v0
v_ashrrev_i32_e32 v64, 31, v63
v_bfe_i32 v4, v0, 3, 1
v_bfe_u32 v1, v76, 4, 3
v_bfi_b32 v10, 0x7fffffff, v96, v95
v_cmp_eq_u32_e32 vcc_lo, 3, v2
v_cmp_eq_u32_e64 s0, 0, v17
v_cmp_ge_f32_e64 s1, |v1|, 1.0
v_cmp_ge_i32_e32 vcc_lo, s13, v22
v_cmp_ge_i32_e64 s7, s25, v1
v_cmp_ge_i64_e32 vcc_lo, s[6:7], v[0:1]
v_cmp_ge_i64_e64 s0, s[4:5], s[18:19]
v_cmp_gt_f16_e32 vcc_lo, 0, v8.l
v_cmp_gt_f16_e64 s0, 0xd100, v9.l
v_cmp_gt_f32_e32 vcc_lo, 0, v17
v_cmp_gt_f32_e32 vcc_lo, 0x43960000, v15
v_cmp_gt_f32_e64 s16, 0, v16
v_cmp_gt_f32_e64 s3, 0xc2200000, v4
v_cmp_gt_i32_e32 vcc_lo, s27, v5
v_cmp_gt_i32_e64 s13, s38, v46
v_cmp_gt_i64_e32 vcc_lo, s[12:13], v[37:38]
v_cmp_gt_i64_e64 s18, s[4:5], s[16:17]
v_cmp_gt_i64_e64 s11, 0x800, s[10:11]
v_cmp_gt_u32_e32 vcc_lo, s4, v55
v_cmp_gt_u32_e64 s10, s39, v45
v_cmp_le_f32_e32 vcc_lo, 0xc3160000, v0
v_cmp_le_i32_e32 vcc_lo, s14, v0
v_cmp_le_i32_e64 s5, s29, v2
v_cmp_le_i64_e64 s11, s[20:21], s[34:35]
v_cmp_lt_i32_e32 vcc_lo, 0, v20
v_cmp_lt_i32_e64 s6, 7, v13
v_cmp_lt_i64_e64 s12, s[16:17], s[12:13]
v_cmp_lt_u64_e64 s1, s[26:27], 3
v_cmp_ne_u32_e32 vcc_lo, 1, v19
v_cmp_neq_f32_e32 vcc_lo, 0xff800000, v2
v_cmp_nge_f16_e64 s0, 0, v9.l
v_cmp_nge_f32_e32 vcc_lo, 0, v3
v_cmp_nge_f32_e64 s1, 0, v10
v_cmp_ngt_f32_e32 vcc_lo, 0, v9
v_cmp_ngt_f32_e32 vcc_lo, 0xc3160000, v38
v_cmp_ngt_f32_e64 s4, 0, v29
v_cmp_ngt_f32_e64 s1, 0xc2b17218, v96
v_cmp_nlt_f32_e64 s1, 0x42ce8ed0, v51
v_cmp_o_f32_e32 vcc_lo, v26, v26
v_cmp_o_f32_e64 s4, v97, v97
v_cmp_u_f32_e32 vcc_lo, v19, v19
v_cmp_u_f32_e64 s0, v11, v11
v_cmpx_eq_u32_e32 0, v16
v_cmpx_gt_i32_e32 s7, v0
v_cmpx_gt_i32_e64 s18, v8
v_cmpx_gt_i64_e64 s[6:7], v[14:15]
v_cmpx_lt_i32_e32 0, v2
v_cmpx_lt_i32_e64 v15, v3
v_cmpx_nlt_f32_e64 |v59|, 1.0
v_cndmask_b16 v3.l, 0x7fff, v10.l, s7
v_cndmask_b32_e32 v62, 1.0, v62, vcc_lo
v_cndmask_b32_e32 v18, 0x80000000, v21, vcc_lo
v_cndmask_b32_e64 v85, 0, v21, s4
v_cndmask_b32_e64 v50, 0x80000000, v50, s5
v_cvt_f16_f32_e32 v1.l, v3
v_cvt_f32_f16_e32 v46, v46.l
v_cvt_f32_f16_e64 v200, v138.l
v_cvt_f32_u32_e32 v1, s11
v_cvt_f32_ubyte0_e32 v1, s3
v_cvt_i32_f32_e32 v48, v49
v_cvt_u32_f32_e32 v3, v3
v_div_fixup_f32 v34, v34, v29, 1.0
v_div_fmas_f32 v9, v9, v11, v15
v_div_scale_f32 v3, null, v2, v2, 1.0
v_exp_f32_e32 v28, v28
v_fma_f32 v39, v40, v39, v40
v_fma_f32 v13, 0x3fb8aa3b, v11, -v12
v_fma_mix_f32 v3, v15, v15, v3 op_sel_hi:[1,1,0]
v_fma_mixhi_f16 v42, v56, v54, neg(0)
v_fma_mixlo_f16 v26, v49, v27, neg(0)
v_fmaak_f32 v31, v28, v31, 0x3f8000c7
v_fmac_f32_e32 v23, v25, v23
v_fmac_f32_e32 v23, 0x3fb8aa3b, v14
v_fmamk_f32 v57, v57, 0x32a57060, v58
v_ldexp_f32 v52, v52, v53
v_lshl_add_u32 v113, v97, 8, 0
v_lshl_or_b32 v1, s28, 8, v1
v_lshlrev_b32_e32 v0, 2, v0
v_lshlrev_b64_e32 v[23:24], 1, v[23:24]
v_lshrrev_b32_e32 v0, 16, v42
v_mad_co_i64_i32 v[13:14], null, s30, ttmp9, v[25:26]
v_mad_co_u64_u32 v[7:8], null, v5, s6, 0
v_max3_num_f32 v22, v24, v22, v23
v_max_num_f32_e32 v21, v21, v21
v_max_num_f32_e32 v1, 0xff800000, v1
v_max_num_f32_e64 v6, |v5|, |v5|
v_mbcnt_lo_u32_b32 v16, -1, 0
v_min_i32_e32 v10, s2, v9
v_min_num_f32_e32 v3, 4.0, v3
v_min_num_f32_e32 v8, 0x41a00000, v23
v_mov_b16_e32 v17.l, v12.l
v_mov_b16_e32 v18.l, 0xfc00
v_mov_b16_e64 v105.h, v129.l op_sel:[0,1]
v_mov_b32_dpp v48, v47 row_xmask:1 row_mask:0xf bank_mask:0xf bound_ctrl:1
v_mov_b32_e32 v3, s42
v_mov_b32_e32 v2, 0xff800000
v_mul_f32_e32 v33, v38, v33
v_mul_f32_e32 v21, 0x3fb8aa3b, v21
v_mul_f32_e64 v37, |v29|, -0.5
v_mul_lo_u32 v29, v14, s10
v_or3_b32 v49, 0, 0, v28
v_or3_b32 v7, v0, s10, 0x100
v_or_b16 v33.l, s59, v33.l
v_or_b32_e32 v39, 24, v44
v_or_b32_e32 v4, 0xc00, v8
v_perm_b32 v9, v18, v16, 0x3020706
v_permlanex16_b32 v6, v5, -1, -1 op_sel:[1,0]
v_permlanex16_b32 v19, v11, s1, 0xfedcba98 op_sel:[1,0]
v_rcp_f32_e32 v32, v30
v_rcp_iflag_f32_e32 v1, s4
v_readfirstlane_b32 s15, v1
v_readlane_b32 s10, v3, 31
v_rndne_f32_e32 v49, v47
v_rsq_f32_e32 v15, v59
v_s_rcp_f32 s34, s6
v_s_rsq_f32 s0, s0
v_sub_f32_e32 v35, v35, v40
v_sub_nc_u32_e32 v24, s13, v11
v_sub_nc_u32_e32 v65, 0xffffffc0, v21
v_subrev_nc_u32_e32 v1, s8, v6
v_wmma_f32_16x16x16_bf16 v[25:32], v[37:40], v[33:36], v[25:32]
v_wmma_f32_16x16x16_f16 v[25:32], v[37:40], v[33:36], v[25:32]
v_xad_u32 v61, v33, 32, 0
v_xad_u32 v7, 0x44, v5, 0
v_xor3_b32 v3, v4, v22, v0
v_xor_b32_e32 v3, 32, v27
v_xor_b32_e32 v11, 0x80000000, v11
v_dual_cndmask_b32 v29, v29, v41 :: v_dual_mul_f32 v18, v18, v28
v_dual_mov_b32 v44, 0 :: v_dual_add_nc_u32 v35, 0, v5
v_dual_add_f32 v29, v29, v28 :: v_dual_add_nc_u32 v62, v51, v43
v_dual_mov_b32 v2, s6 :: v_dual_add_f32 v3, v3, v45
v_dual_fmac_f32 v24, v16, v16 :: v_dual_mul_f32 v77, v59, v70
v_dual_fmac_f32 v23, v6, v6 :: v_dual_and_b32 v0, 24, v0
v_dual_fmaak_f32 v25, v25, v14, 0x3ec63626 :: v_dual_add_f32 v8, v10, v8
v_dual_cndmask_b32 v29, 0x80000000, v42 :: v_dual_fmac_f32 v34, v34, v28
v_dual_mov_b32 v17, v1 :: v_dual_cndmask_b32 v2, v2, v4
v_dual_mul_f32 v47, 0.5, v31 :: v_dual_cndmask_b32 v8, 0xc3160000, v8
v_dual_mov_b32 v3, v8 :: v_dual_mov_b32 v2, v8
v_dual_cndmask_b32 v1, 0xfc00fc00, v1 :: v_dual_add_nc_u32 v0, 0, v0
v_dual_fmac_f32 v34, v19, v26 :: v_dual_fmac_f32 v35, v24, v29
v_dual_max_num_f32 v0, v2, v2 :: v_dual_max_num_f32 v1, v1, v1
v_dual_add_f32 v27, -4.0, v18 :: v_dual_and_b32 v0, 0xffff0000, v0
v_dual_mul_f32 v17, v69, v69 :: v_dual_sub_f32 v24, v24, v18
v_dual_mul_f32 v16, v93, v93 :: v_dual_fmac_f32 v13, v56, v56
v_dual_sub_f32 v15, v15, v15 :: v_dual_fmac_f32 v18, 0xbecc422a, v21
v_dual_fmac_f32 v139, v59, v62 :: v_dual_add_nc_u32 v164, -16, v164
v_dual_mul_f32 v7, v7, v9 :: v_dual_and_b32 v2, 1, v15
v_dual_add_f32 v11, v6, v11 :: v_dual_and_b32 v6, 31, v0
v_dual_mov_b32 v9, v12 :: v_dual_lshlrev_b32 v2, 2, v1
v_dual_add_f32 v9, v9, v10 :: v_dual_fmac_f32 v16, v76, v76
v_dual_min_num_f32 v18, 0x41a00000, v18 :: v_dual_lshlrev_b32 v9, 16, v0
v_dual_fmac_f32 v33, v33, v27 :: v_dual_fmaak_f32 v38, v32, v38, 0xbf914e5d
